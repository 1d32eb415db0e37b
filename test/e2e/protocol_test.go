package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/record"
)

// chartID is that of the n-th deployment of a Helm chart.
func chartID(n int) string { return fmt.Sprintf("c4a27000-0000-4000-8000-%012d", n) }

// publishChart publishes a deployment that this device cannot run. That it says
// so for a manifest version shows that it fetched and verified the document of
// that version, and takes no containers.
func (r *rig) publishChart(n, revision int) wfmsim.Published {
	r.t.Helper()
	d := r.Deployment(chartID(n), map[string]any{"REVISION": revision})
	body, err := d.Document()
	check(r.t, err)
	done, err := r.WFM.Publish(plant.Client, []byte(strings.Replace(string(body), "type: compose", "type: helm", 1)))
	check(r.t, err)
	return done
}

// refusesChart waits until the WFM heard that a chart cannot be run.
func (r *rig) refusesChart(done wfmsim.Published) {
	r.t.Helper()
	report, err := r.Await(r.t.Context(), done.DeploymentID, margo.Failed, done.Version)
	check(r.t, err)
	if e := report.Status.Error; e == nil || e.Code != "UNSUPPORTED_TYPE" {
		r.t.Errorf("deployment %s failed by %+v, want UNSUPPORTED_TYPE", done.DeploymentID, e)
	}
}

// inject lets something go wrong at the WFM.
func (r *rig) inject(faults ...fault.Fault) {
	r.t.Helper()
	for _, f := range faults {
		_, err := r.WFM.Faults().Inject(f)
		check(r.t, err)
	}
}

// sync polls the WFM now.
func (r *rig) sync() error { return r.Control().Sync(r.t.Context()) }

// synced polls until that works: the agent may just have been held back.
func (r *rig) synced() {
	r.t.Helper()
	r.eventually("the WFM can be polled", r.sync)
}

// quiet waits until everything was told to the WFM.
func (r *rig) quiet() {
	r.t.Helper()
	check(r.t, r.Quiet(r.t.Context()))
}

// asked is how many requests the WFM has had, for since.
func (r *rig) asked() int { return r.WFM.Requests().Count("") }

// since are the requests that came after the first n; those of some endpoints
// where they are named.
func (r *rig) since(n int, endpoints ...string) []record.Request {
	return slices.DeleteFunc(r.WFM.Requests().Requests(), func(q record.Request) bool {
		return q.Number <= int64(n) || len(endpoints) > 0 && !slices.Contains(endpoints, q.Endpoint)
	})
}

// nextRequest waits for the first request after the first n, to one of the
// endpoints if they are named, that is answered with a status; 0: any.
func (r *rig) nextRequest(n, status int, endpoints ...string) record.Request {
	r.t.Helper()
	var next record.Request
	r.eventually(fmt.Sprintf("a request to %v is answered %d", endpoints, status), func() error {
		all := r.since(n, endpoints...)
		i := slices.IndexFunc(all, func(q record.Request) bool { return q.Done && (status == 0 || q.Status == status) })
		if i < 0 {
			return fmt.Errorf("not among %+v", all)
		}
		next = all[i]
		return nil
	})
	return next
}

// reconnect ends all connections to the WFM.
func (r *rig) reconnect() {
	r.t.Helper()
	check(r.t, r.WFM.Close())
	check(r.t, r.WFM.Start(""))
}

// untouched fails the test if services are not the very same as before.
func (r *rig) untouched(id string, before map[string]control.Service) {
	r.t.Helper()
	after := r.services(id)
	if len(after) != len(before) {
		r.t.Errorf("%d services run, want %d", len(after), len(before))
	}
	for name, was := range before {
		now := after[name]
		if !sameTask(was, now) || was.Started == nil || now.Started == nil || was.Started.Sub(*now.Started).Abs() > time.Second {
			r.t.Errorf("service %s was touched: it is %s with process %d since %v, was %s with %d since %v",
				name, now.Container, now.Pid, now.Started, was.Container, was.Pid, was.Started)
		}
	}
}

// logged gives the lines of the agent's log, from a length of it on, that hold
// all words.
func (r *rig) logged(from int, words ...string) []string {
	r.t.Helper()
	text, err := os.ReadFile(r.LogFile())
	check(r.t, err)
	var lines []string
	for line := range strings.Lines(string(text[min(from, len(text)):])) {
		if containsAll(line, words...) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// logLength is where the agent's log ends now.
func (r *rig) logLength() int {
	r.t.Helper()
	info, err := os.Stat(r.LogFile())
	check(r.t, err)
	return int(info.Size())
}

// One document of many that is not what the manifest says keeps the whole
// manifest from being accepted, whichever way the documents are fetched: nothing
// of the others is applied or reported. When the WFM is right again, so is the
// device.
func TestDS09DS16DS18OneBadDocumentAmongMany(t *testing.T) {
	long(t, "the rest of the protocol")
	const many, bad = 12, 7
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	wrong := fault.Fault{Endpoint: wfmsim.EndpointManifest, Kind: fault.WrongDigest, Name: chartID(bad)}
	single := fault.Fault{Endpoint: wfmsim.EndpointDocument, Match: chartID(bad)}
	for i, test := range []struct {
		name   string
		faults []fault.Fault
	}{
		{"a digest that neither the bundle nor anything else has", []fault.Fault{wrong}},
		{"a digest that no document has, and no bundle", []fault.Fault{
			wrong, {Endpoint: wfmsim.EndpointBundle, Kind: fault.Answer, Status: 404},
		}},
		{"a wrong byte in the bundle and in one document", []fault.Fault{
			{Endpoint: wfmsim.EndpointBundle, Kind: fault.Corrupt, Bytes: 60},
			{Endpoint: single.Endpoint, Match: single.Match, Kind: fault.Corrupt, Bytes: 10},
		}},
		{"DS-14 a bundle without one document, which is nowhere else", []fault.Fault{
			{Endpoint: wfmsim.EndpointManifest, Kind: fault.Twist, What: "bundle-missing-entry"},
			{Endpoint: single.Endpoint, Kind: fault.Answer, Status: 404},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r.t = t
			r.quiet()
			before, reported := r.services(demoID), len(r.WFM.Statuses(""))
			held := r.status().Manifest
			r.inject(test.faults...)
			r.publishChart(bad, i) // first, so that no manifest is right any more
			for n := range many {
				r.publishChart(n, i)
			}
			demo := r.publish(r.Deployment(demoID, map[string]any{"GREETING": test.name}))
			if err := r.sync(); err == nil {
				t.Error("a manifest with a bad document was accepted")
			}
			s := r.status()
			if s.WFM.Refused == "" || s.Manifest.Version != held.Version || s.Manifest.Digest != held.Digest {
				t.Errorf("the device holds %+v, held %+v, and says %+v", s.Manifest, held, s.WFM)
			}
			if n := len(r.WFM.Statuses("")) - reported; n != 0 || s.Outbox != 0 {
				t.Errorf("%d reports came of it, and %d more wait", n, s.Outbox)
			}
			r.untouched(demoID, before)

			r.WFM.Faults().Clear("")
			r.synced()
			r.await(demoID, margo.Installed, demo.Version)
			for n := range many {
				r.await(chartID(n), margo.Failed, r.chartSince(n))
			}
			if s := r.status(); s.WFM.Refused != "" || s.Manifest.Version != demo.Version {
				t.Errorf("after it was mended the device holds %+v and says %+v", s.Manifest, s.WFM)
			}
		})
	}
	r.t = t
}

// chartSince is the version with which the present revision of a chart came.
func (r *rig) chartSince(n int) uint64 {
	r.t.Helper()
	for _, d := range r.WFM.Deployments(plant.Client) {
		if margo.SameID(d.DeploymentID, chartID(n)) {
			return d.Since
		}
	}
	r.t.Fatalf("chart %d is not deployed", n)
	return 0
}

// What WFMs write differently is understood, or refused, but never
// misunderstood: each row publishes something new and says what comes of it.
func TestWFMsThatWriteItDifferently(t *testing.T) {
	long(t, "the rest of the program")
	servers, err := pki.NewServerAuthority("plant servers", time.Now())
	check(t, err)
	depot, err := servers.IssueServer([]string{"127.0.0.1"})
	check(t, err)
	r := newRigWith(t, "embedded", func(o *wfmsim.Options) {
		o.Prefix, o.Gzip, o.Depot = "/fleet/north", true, depot.TLS()
	})
	ca := r.dir + "/servers.pem"
	check(t, os.WriteFile(ca, servers.RootPEM(), 0o644))
	// Between two versions nobody is to look.
	seldom := usual
	seldom.Poll, seldom.WFM = time.Hour, map[string]string{"ca": ca}
	check(t, r.Configure(seldom))
	r.running()
	r.synced()

	twist := func(what ...string) (faults []fault.Fault) {
		for _, w := range what {
			faults = append(faults, fault.Fault{Endpoint: wfmsim.EndpointManifest, Kind: fault.Twist, What: w})
		}
		return faults
	}
	for i, test := range []struct {
		name    string
		url     wfmsim.URLForm
		faults  []fault.Fault
		refused string // what the refusal says; empty: it is accepted
	}{
		{name: "DS-10 compressed manifest and document"},
		{name: "DS-12 URLs without the prefix", url: wfmsim.WithoutPrefix},
		{name: "DS-12 absolute URLs", url: wfmsim.Absolute},
		{name: "DS-12 no URLs", url: wfmsim.Absent},
		{name: "no bundle beside deployments", faults: twist("null-bundle"), refused: "bundle"},
		{name: "DS-12 URLs of a client that is not valid any more", url: wfmsim.Legacy},
		{name: "DS-09 another origin", url: wfmsim.OtherOrigin},
		{name: "DS-06 a version with an exponent", faults: twist("version-exponent")},
		{name: "DS-06 a version with a decimal point", faults: twist("version-decimal")},
		{name: "DS-06 a fraction", faults: twist("version-fraction"), refused: "manifestVersion"},
		{name: "DS-06 a version as text", faults: twist("version-text"), refused: "manifestVersion"},
		{name: "DS-06 a version of more than 64 bits", faults: twist("version-overflow"), refused: "manifestVersion"},
		{name: "the same entry twice", faults: twist("duplicate")},
		{name: "two revisions of one deployment", faults: twist("conflict"), refused: "deployment"},
		{name: "ids in capitals", faults: twist("id-case")},
		{name: "no member bundle", faults: twist("no-bundle"), refused: "bundle"},
		{name: "DS-11 another algorithm", faults: twist("sha512"), refused: "sha512"},
		{name: "DS-16 a bundle with more than the manifest lists", faults: twist("bundle-extra-entry")},
		{name: "DS-16 a bundle with paths that lead out of it", faults: twist("bundle-paths")},
		{name: "DS-16 a bundle that expands without end", faults: twist("bundle-bomb")},
		{name: "a weak ETag", faults: []fault.Fault{{Endpoint: wfmsim.EndpointManifest, Kind: fault.WeakETag}}},
		{name: "DS-06 the greatest version there is", faults: twist("version-max")},
	} {
		t.Run(test.name, func(t *testing.T) {
			r.t = t
			check(t, r.WFM.SetURLs(test.url))
			r.inject(test.faults...)
			var last wfmsim.Published
			for n := range 3 {
				last = r.publishChart(n, i)
			}
			err := r.sync()
			s := r.status()
			switch {
			case test.refused == "" && err != nil:
				t.Errorf("it is refused: %v", err)
			case test.refused != "" && err == nil:
				t.Error("it is accepted")
			case test.refused != "" && !strings.Contains(s.WFM.Refused, test.refused):
				t.Errorf("status says %q, which does not name %s", s.WFM.Refused, test.refused)
			case test.refused == "":
				r.eventually("every deployment was looked at", func() error {
					return r.allFailed(3, last.Digest.String())
				})
			}
			r.WFM.Faults().Clear("")
		})
	}
	r.t = t
	if shown := r.WFM.Depot().Shown(); len(shown) > 0 || len(r.WFM.Depot().Requests().Requests()) == 0 {
		t.Errorf("the other origin was shown %q in %d requests", shown, len(r.WFM.Depot().Requests().Requests()))
	}
	if escaped, err := os.Stat("/tmp/margolite-escaped"); err == nil {
		t.Errorf("%s was written", escaped.Name())
	}

	// Nothing is greater than the greatest version, and only an operator helps.
	if err := r.sync(); err == nil || r.status().WFM.RefusedManifest == nil {
		t.Errorf("after the greatest version another one is accepted: %v", err)
	}
	_, err = r.margolite("accept-rollback", "--yes")
	check(t, err)
	check(t, r.Reconfigure(usual))
}

// allFailed says that so many charts are known and not to be run, among them
// one with this digest.
func (r *rig) allFailed(count int, digest string) error {
	found, failed := false, 0
	for _, d := range r.status().Deployments {
		found = found || d.Digest == digest
		if d.State == string(margo.Failed) {
			failed++
		}
	}
	if !found || failed != count {
		return errors.New("not yet")
	}
	return nil
}
