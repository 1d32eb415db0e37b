package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

// unavailable answers 503 until it is cleared.
func unavailable(endpoint string) fault.Fault {
	return fault.Fault{Endpoint: endpoint, Kind: fault.Answer, Status: 503, RetryAfter: "1"}
}

// compose makes a component of one Compose file.
func compose(name, version, file string) ociimage.Component {
	return ociimage.Component{Name: name, Version: version, Files: ociimage.Files{"compose.yaml": []byte(file)}}
}

// Whatever is wrong with a manifest or with the bytes it names refuses the
// change as a whole: what runs keeps running, untouched, and the next good
// manifest is accepted.
func TestDS18BadManifestsAreRefusedAsAWhole(t *testing.T) {
	long(t, "the rest of the protocol")
	entry := func(id string, d digest.Digest) string {
		return fmt.Sprintf(`{"deploymentId":%q,"digest":%q,"url":"/api/v1/deployments/%s/%s"}`, id, d, id, d)
	}
	bundle := func(d digest.Digest) string {
		return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"url":"/api/v1/bundles/%s"}`, margo.BundleMediaType, d, d)
	}
	manifest := func(version any, bundle string, entries ...string) []byte {
		return fmt.Appendf(nil, `{"manifestVersion":%v,"bundle":%s,"deployments":[%s]}`, version, bundle, strings.Join(entries, ","))
	}
	const newID = "b0a7e1c2-0000-4000-8000-000000000001"
	good := []byte("id: " + newID + "\n")
	goodDigest := digest.FromBytes(good)
	noBundle := digest.FromString("no bundle")

	cases := map[string]wfmsim.Raw{
		"not JSON":                       {Manifest: []byte("manifest")},
		"cut short":                      {Manifest: []byte(`{"manifestVersion":1000,"bundle":null,"depl`)},
		"no bundle member":               {Manifest: []byte(`{"manifestVersion":1000,"deployments":[]}`)},
		"version zero":                   {Manifest: manifest(0, "null")},
		"version above 64 bits":          {Manifest: manifest("18446744073709551616", "null")},
		"DS-06 lower version":            {Manifest: manifest(1, "null")},
		"DS-06 same version, other text": {Manifest: manifest(2, "null")},
		"DS-11 unsupported digest":       {Manifest: manifest(1000, bundle(noBundle), strings.ReplaceAll(entry(newID, goodDigest), "sha256", "sha512"))},
		"the same id twice":              {Manifest: manifest(1000, bundle(noBundle), entry(newID, goodDigest), entry(newID, digest.FromString("x")))},
		"a document nobody has":          {Manifest: manifest(1000, bundle(noBundle), entry(newID, goodDigest))},
		"DS-09 wrong bytes everywhere": {
			Manifest:  manifest(1000, bundle(noBundle), entry(newID, goodDigest)),
			Documents: map[digest.Digest][]byte{goodDigest: []byte("something else")},
			Bundles:   map[digest.Digest][]byte{noBundle: []byte("something else")},
		},
		"an oversized document": {
			Manifest:  manifest(1000, bundle(noBundle), entry(newID, goodDigest)),
			Documents: map[digest.Digest][]byte{goodDigest: make([]byte, 64<<20)},
		},
		"an oversized manifest": {Manifest: append(manifest(1000, "null"), make([]byte, 64<<20)...)},
	}

	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil)) // version 2
	before := r.services(demoID)
	for name, raw := range cases {
		t.Run(name, func(t *testing.T) {
			r.t = t
			r.WFM.SetRaw(plant.Client, raw)
			if err := r.Control().Sync(t.Context()); err == nil {
				t.Error("sync succeeded with a bad manifest")
			}
			s := r.status()
			if s.WFM.Refused == "" {
				t.Errorf("status does not say why the manifest is refused: %+v", s.WFM)
			}
			if s.Manifest.Version != 2 || len(s.Deployments) != 1 || s.Deployments[0].State != "installed" {
				t.Errorf("the refused manifest changed something: %+v", s)
			}
			for service, was := range before {
				if now := r.services(demoID)[service]; !sameTask(was, now) {
					t.Errorf("service %s changed: %+v was %+v", service, now, was)
				}
			}
		})
	}
	r.t = t
	r.install(r.Deployment(demoID, map[string]any{"GREETING": "Good again"}))
	if s := r.status(); s.WFM.Refused != "" {
		t.Errorf("the good manifest is shown as refused: %s", s.WFM.Refused)
	}
}

// An artifact that cannot be had is fetched the other way.
func TestDS12DS14BundleAndDocumentsReplaceEachOther(t *testing.T) {
	long(t, "the rest of the protocol")
	r := newRig(t, "embedded")
	r.running()
	for i, f := range []fault.Fault{
		{Endpoint: wfmsim.EndpointBundle, Kind: fault.Answer, Status: 404},
		{Endpoint: wfmsim.EndpointBundle, Kind: fault.Answer, Status: 500, RetryAfter: fault.NoRetryAfter},
		{Endpoint: wfmsim.EndpointBundle, Kind: fault.Answer, Status: 503},
		{Endpoint: wfmsim.EndpointDocument, Kind: fault.Answer, Status: 503},
		{Endpoint: wfmsim.EndpointDocument, Kind: fault.Answer, Status: 404},
	} {
		_, err := r.WFM.Faults().Inject(f)
		check(t, err)
		r.install(r.Deployment(demoID, map[string]any{"GREETING": fmt.Sprint("Hello ", i)}))
		r.WFM.Faults().Clear("")
	}
}

// Bytes that arrived and do not match their digest refuse the change as a whole, and
// are no reason to refuse the same manifest once they match.
func TestDS18WrongBytesAreRefusedUntilTheyAreRight(t *testing.T) {
	long(t, "the rest of the protocol")
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	before := r.services(demoID)
	for i, f := range []fault.Fault{
		{Endpoint: wfmsim.EndpointBundle, Kind: fault.Corrupt, Bytes: 40},
		{Endpoint: wfmsim.EndpointBundle, Kind: fault.Truncate, Bytes: 40},
		{Endpoint: wfmsim.EndpointDocument, Kind: fault.Corrupt, Bytes: 10},
	} {
		_, err := r.WFM.Faults().Inject(f)
		check(t, err)
		if f.Endpoint == wfmsim.EndpointDocument {
			_, err := r.WFM.Faults().Inject(fault.Fault{Endpoint: wfmsim.EndpointBundle, Kind: fault.Answer, Status: 404})
			check(t, err)
		}
		done := r.publish(r.Deployment(demoID, map[string]any{"GREETING": fmt.Sprint("Hello ", i)}))
		if err := r.Control().Sync(t.Context()); err == nil {
			t.Errorf("sync succeeded though the %s is wrong", f.Endpoint)
		}
		if s := r.status(); !strings.Contains(s.WFM.Refused, "does not match its digest") {
			t.Errorf("status says of a wrong %s: %q", f.Endpoint, s.WFM.Refused)
		}
		for service, was := range before {
			if now := r.services(demoID)[service]; !sameTask(was, now) {
				t.Errorf("service %s changed: %+v was %+v", service, now, was)
			}
		}
		r.WFM.Faults().Clear("")
		r.await(demoID, margo.Installed, done.Version)
		before = r.services(demoID)
	}
}

// What is wrong inside one deployment fails that deployment alone, with code,
// source and message; its former revision keeps running, and so do the others.
func TestST08ST09BadDeploymentFailsAlone(t *testing.T) {
	long(t, "the rest of the program")
	const otherID = "b0a7e1c2-0000-4000-8000-000000000002"
	onBackends(t, func(t *testing.T, r *rig) {
		outside := programs.component
		outside.Version = "6.0.0"
		outside.ExtraEntries = []ociimage.Entry{{Name: "demo/../../escape", Data: []byte("x")}}
		r.pushComponent("apps/demo", outside)
		r.pushComponent("apps/demo", compose("demo", "7.0.0", "services: {web: {image: \"${REGISTRY}/margolite/demoapp:1.0.0\", credential_spec: {file: x.json}}}"))
		r.pushComponent("apps/demo", compose("demo", "8.0.0", "services: {web: {image: \"${REGISTRY}/margolite/nonesuch:1.0.0\"}}"))
		r.pushComponent("apps/demo", compose("demo", "9.0.0", "services: {web: {image: \"${REGISTRY}/margolite/demoapp:1.0.0\", command: [nonesuch]}}"))

		revision := func(r string) func(*wfmsim.Deployment) {
			return func(d *wfmsim.Deployment) { d.Components[0].Revision = r }
		}
		cases := []struct {
			name   string
			change func(d *wfmsim.Deployment)
			raw    func(document string) string // of the document, for what Deployment cannot say
			code   string
			says   []string
		}{
			{name: "AD-03 AD-15 helm", raw: func(s string) string { return strings.Replace(s, "type: compose", "type: helm", 1) }, code: "UNSUPPORTED_TYPE", says: []string{"helm"}},
			{name: "AD-14 AD-15 another device's id", change: func(d *wfmsim.Deployment) { d.DeviceID = "edge-02" }, code: "WRONG_DEVICE", says: []string{"edge-02"}},
			{name: "PKG-05 PKG-08 an archive that escapes", change: revision("6.0.0"), code: "INVALID_PACKAGE", says: []string{"escape"}},
			{name: "a key that is not supported", change: revision("7.0.0"), code: "COMPOSE_UNSUPPORTED", says: []string{"credential_spec", "web"}},
			{name: "an image that is missing", change: revision("8.0.0"), code: "ARTIFACT_NOT_FOUND", says: []string{"nonesuch"}},
			{name: "a package that is missing", change: revision("5.5.5"), code: "ARTIFACT_NOT_FOUND", says: []string{"5.5.5"}},
			{name: "PKG-13 a container that ends at once", change: revision("9.0.0"), code: "CONTAINER_EXITED", says: []string{"web"}},
		}
		patient := usual
		patient.Settle = longSettle
		check(t, r.Configure(patient))
		r.running()
		r.install(r.Deployment(demoID, nil))
		r.install(r.Deployment(otherID, map[string]any{"PORT": 8092}))
		otherBefore := r.services(otherID)
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				r.t = t
				before := r.services(demoID)
				d := r.Deployment(demoID, nil)
				if c.change != nil {
					c.change(&d)
				}
				body, err := d.Document()
				check(t, err)
				if c.raw != nil {
					body = []byte(c.raw(string(body)))
				}
				done, err := r.WFM.Publish(plant.Client, body)
				check(t, err)
				r.await(demoID, margo.Failed, done.Version)

				reports := r.WFM.Statuses(demoID)
				last := reports[len(reports)-1].Status
				if last.Error == nil || last.Error.Code != c.code || last.Error.Source != "demo-deployment" {
					t.Errorf("reported error is %+v, want code %s", last.Error, c.code)
				}
				if text, err := json.Marshal(last); err != nil || !containsAll(string(text), c.says...) {
					t.Errorf("the report %s does not say %q", text, c.says)
				}
				r.eventually("the former revision answers", func() error {
					a, err := plant.Ask(t.Context(), 8090)
					if err == nil && a.Greeting != "Hello" {
						err = errors.New(a.Text)
					}
					return err
				})
				r.eventually("only the former revision runs", func() error {
					after, err := r.servicesOnce(demoID)
					if err != nil {
						return err
					}
					for service, was := range before {
						now := after[service]
						if c.code == "CONTAINER_EXITED" { // it was replaced, and is back
							was.Pid, now.Pid = 0, 0
						}
						if !sameTask(was, now) {
							return fmt.Errorf("service %s is %+v, was %+v", service, now, was)
						}
					}
					return nil
				})
				for service, was := range otherBefore {
					if now := r.services(otherID)[service]; !sameTask(was, now) {
						t.Errorf("service %s of another deployment changed: %+v was %+v", service, now, was)
					}
				}
			})
		}
		r.t = t
		r.install(r.Deployment(demoID, map[string]any{"GREETING": "Mended"}))
		r.answers(8090)
	})
}

func containsAll(s string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}

// decode reads JSON that the command line printed.
func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("cannot read %q: %v", text, err)
	}
	return v
}
