package e2e

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

// The main job with each WFM in the field, by the standard's settings and its revision:
// a look at it that changes nothing, onboarding, capabilities, installation, update,
// failure, restart of both sides, removal.
func TestTheMainJobWithEachWFMInTheField(t *testing.T) {
	long(t, "every WFM in the field")
	for _, like := range wfmsim.Likes() {
		t.Run(like.Name, func(t *testing.T) {
			r := newRigBy(t, plant.Way{Revision: like.Revision, Change: like.Apply})
			files := r.serve(usual)
			if out, err := r.margolite("check"); err != nil && !strings.Contains(out, "is reachable") {
				t.Errorf("check says %s, %v", out, err)
			}
			r.running()
			client := r.ClientID()
			if like.Quirks.NumberedClients {
				client = expect.Value(r.WFM.WaitClient(t.Context()))(t)
			}
			device := plant.Device
			if like.Quirks.ClientIDAsDevice {
				device = client
			}
			expect.Value(r.WFM.WaitDevice(t.Context(), client, device))(t)

			id := demoID
			if like.Quirks.OddIDs {
				id = "self-test-app"
			}
			publish := func(parameters map[string]any) wfmsim.Published {
				t.Helper()
				d := r.Deployment(id, parameters)
				body := expect.Value(d.Document())(t)
				if like.Quirks.SandboxDocuments {
					c := d.Components[0]
					body = []byte(strings.NewReplacer(
						"repository: oci://"+c.Repository, "packageLocation: "+files+"/compose.yaml", "revision: "+c.Revision, "", "pointer: ", "pointer: ENV.",
					).Replace(string(body)))
				}
				return expect.Value(r.WFM.Publish(client, body))(t)
			}
			done := publish(nil)
			r.await(id, margo.Installed, done.Version)
			expect.Equal(t, r.answers(8090).Greeting, "Hello", "the application")
			done = publish(map[string]any{"GREETING": "Servus"})
			r.heard(id, 2, margo.Installed)
			expect.Equal(t, r.answers(8090).Greeting, "Servus", "after the update the application")
			publish(map[string]any{"GREETING": "Servus", "PORT": "no port"})
			r.heard(id, 1, margo.Failed)
			expect.Equal(t, r.answers(8090).Greeting, "Servus", "after a failed update the application")

			r.stop()
			address := r.WFM.Address()
			expect.Check(t, r.WFM.Close())
			r.running()
			expect.Equal(t, r.answers(8090).Greeting, "Servus", "without the WFM the application")
			expect.Check(t, r.WFM.Start(address))
			publish(map[string]any{"GREETING": "Moin"})
			r.heard(id, 3, margo.Installed)
			expect.Equal(t, r.answers(8090).Greeting, "Moin", "after a restart of both the application")

			expect.Value(r.WFM.Remove(client, id))(t)
			r.heard(id, 1, margo.Removed)
			r.isAsBefore(t.Context())
		})
	}
}

// heard waits until the WFM heard of a state so many times.
func (r *rig) heard(id string, times int, state margo.State) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
	defer cancel()
	err := r.WFM.WaitStatus(ctx, id, func(reports []wfmsim.Report) bool {
		n := 0
		for i, report := range reports {
			if report.Status.State == state && (i == 0 || reports[i-1].Status.State != state) {
				n++
			}
		}
		return n >= times
	})
	if err != nil {
		out, _ := r.margolite("status")
		r.t.Log(out)
		r.t.Fatalf("the WFM did not hear %s %d times, but %v", state, times, r.reports(id, 0))
	}
}

// serve serves the Compose file of the demonstration over plain HTTP, as /compose.yaml. The
// agent, which is not started yet, is configured for it.
func (r *rig) serve(s plant.Settings) (url string) {
	r.t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /compose.yaml", func(w http.ResponseWriter, _ *http.Request) { w.Write(programs.application.Compose()) })
	server := httptest.NewServer(mux)
	r.t.Cleanup(server.Close)
	s.Registries = append(s.Registries, strings.TrimPrefix(server.URL, "http://"))
	expect.Check(r.t, r.Configure(s))
	return server.URL
}
