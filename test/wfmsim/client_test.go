package wfmsim_test

import (
	"context"
	"errors"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

// agentClient is margolite's own client with files as a device has them.
func (r *rig) agentClient() *wfm.Client {
	r.t.Helper()
	svid, err := r.authority.IssueClient("wfm-1", deviceID)
	if err != nil {
		r.t.Fatal(err)
	}
	files, err := pki.WriteFiles(r.t.TempDir(), svid, r.authority.Bundle())
	if err != nil {
		r.t.Fatal(err)
	}
	id, err := identity.Load(identity.Options{Certificate: files.Certificate, Key: files.Key, TrustBundle: files.TrustBundle})
	if err != nil {
		r.t.Fatal(err)
	}
	client, err := wfm.New(wfm.Options{URL: r.wfm.URL(), TLS: id.TLS()})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(client.CloseIdle)
	return client
}

// ignored takes documents that a test has no use for.
func ignored(digest.Digest, []byte) error { return nil }

func TestTheAgentsClientAndThisWFMUnderstandEachOther(t *testing.T) {
	for name, change := range map[string]func(*wfmsim.Options){
		"at the root":                        nil,
		"under a prefix":                     func(o *wfmsim.Options) { o.Prefix = "/v1alpha2/margo" },
		"under a prefix that URLs leave out": func(o *wfmsim.Options) { o.Prefix, o.URLs = "/v1alpha2/margo", wfmsim.WithoutPrefix },
		"with absolute URLs":                 func(o *wfmsim.Options) { o.URLs = wfmsim.Absolute },
		"with compressed documents":          func(o *wfmsim.Options) { o.Gzip = true },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, change)
			ctx := context.Background()
			client := r.agentClient()
			if err := client.PutCapabilities(ctx, deviceID, capabilitiesOf(deviceID)); err != nil {
				t.Fatal(err)
			}
			r.publish(one, "1.0.0")
			version := r.publish(two, "1.0.0").Version
			m, err := client.Manifest(ctx, "")
			if err != nil || m.Version != version {
				t.Fatalf("manifest %+v, %v", m, err)
			}
			if _, err := client.Manifest(ctx, m.ETag); !errors.Is(err, wfm.ErrNotModified) {
				t.Errorf("the second poll: %v", err)
			}
			// Once as a bundle, once one by one.
			for n := range 2 {
				documents := 0
				err := client.Documents(ctx, m, m.Deployments[n:], func(d digest.Digest, body []byte) error {
					documents++
					if digest.FromBytes(body) != d {
						t.Errorf("document %s is another", d)
					}
					return nil
				})
				if err != nil || documents != 2-n {
					t.Fatalf("got %d documents, %v", documents, err)
				}
			}
			report, err := margo.Status{
				DeploymentID: one, DeviceID: deviceID, AdoptedVersion: version, State: margo.Pending,
				Components: []margo.ComponentStatus{{Name: "web", State: margo.Pending}, {Name: "db", State: margo.Pending}},
			}.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			if err := client.PostStatus(ctx, one, report); err != nil {
				t.Error(err)
			}

			// What is superseded is known by the document alone: it is served on.
			r.publish(one, "2.0.0")
			if err := client.Documents(ctx, m, m.Deployments[:1], ignored); err != nil {
				t.Errorf("an earlier revision: %v", err)
			}
			for _, endpoint := range []string{wfmsim.EndpointBundle, wfmsim.EndpointDocument} {
				if _, err := r.wfm.Faults().Inject(fault.Fault{Endpoint: endpoint, Kind: fault.Answer, Status: 404}); err != nil {
					t.Fatal(err)
				}
			}
			if err := client.Documents(ctx, m, m.Deployments, ignored); !errors.Is(err, wfm.ErrSuperseded) {
				t.Errorf("nothing available: %v", err)
			}
			r.wfm.Retire(deviceID)
			var refused *wfm.Error
			if _, err := client.Manifest(ctx, ""); !errors.As(err, &refused) || !refused.Problem.Retired() {
				t.Errorf("retired: %v", err)
			}
		})
	}
}
