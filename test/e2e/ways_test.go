package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

// hears waits until the WFM heard exactly these states of a deployment, in this
// order. Before rc.3 a report does not say which revision it is about.
func (r *rig) hears(id string, want ...margo.State) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
	defer cancel()
	var heard []margo.State
	err := r.WFM.WaitStatus(ctx, id, func(reports []wfmsim.Report) bool {
		heard = nil
		for _, report := range reports {
			heard = append(heard, report.Status.State)
		}
		return slices.Equal(heard, want)
	})
	expect.Require(r.t, err == nil, "the WFM heard %v, want %v", heard, want)
}

// The life of a deployment is the same whichever way the WFM is reached, and
// every request is authenticated as that way has it. What proves who the device is,
// and what parameters say, is told nowhere.
func TestTheLifeOfADeploymentEachWay(t *testing.T) {
	const parameter = "correct-horse-battery"
	spiffeID := "spiffe://" + plant.TrustDomain + "/margo/wfm/" + plant.WFM
	for name, c := range map[string]struct {
		way    plant.Way
		check  []string // what margolite check says
		status []string // what margolite status says
	}{
		"AUTH-04 AUTH-08 CAP-06 ST-18 rc.2": {
			plant.Way{Revision: margo.RC2},
			[]string{"identity: valid until", "is reachable; whether it knows this device was not checked"},
			[]string{"CLIENT, certificate valid for"},
		},
		"AUTH-04 AUTH-08 CAP-06 ST-18 rc.1": {
			plant.Way{Revision: margo.RC1},
			[]string{"identity: valid until", "is reachable; whether it knows this device was not checked"},
			[]string{"CLIENT, certificate valid for"},
		},
		"a gateway that wants a password": {plant.Way{Gateway: "Basic"}, []string{"wfm: https://", "is reachable"}, nil},
		"a gateway that wants a token":    {plant.Way{Gateway: "Bearer"}, []string{"wfm: https://", "is reachable"}, nil},
		"AUTH-12 DS-27 DS-28 POL-13 a Git repository": {
			plant.Way{Repository: true},
			[]string{
				"identity: " + spiffeID + "/client/" + plant.Client + ", valid until", "wfm: git+https://", "#main:devices is at commit ",
				spiffeID + ", which receives the reports, is reachable",
			},
			[]string{"git+https://", spiffeID + "/client/" + plant.Client + ", certificate valid for"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.way.Revision == margo.RC1 || c.way.Gateway == "Basic" {
				long(t, "much as rc.2 and a token")
			}
			r := newRigBy(t, c.way)
			r.running()
			r.publish(r.Deployment(demoID, nil))
			r.hears(demoID, margo.Pending, margo.Installing, margo.Installed)
			expect.Equal(t, r.answers(8090).Greeting, "Hello", "the application")
			known := expect.Value(r.WFM.WaitDevice(t.Context(), r.ClientID(), plant.Device))(t)
			expect.Equal(t, known.ID, plant.Device, "the WFM knows %s", known.Body)

			r.shows("check", c.check...)
			want := []string{"reachable", "installed"}
			for _, part := range c.status {
				want = append(want, strings.ReplaceAll(part, "CLIENT", r.ClientID()))
			}
			status := r.shows("status", want...)
			expect.True(t, !strings.Contains(status, "attention"), "status says %s", status)

			// A restart needs nothing but what is on the medium.
			r.stop()
			before := r.WFM.Requests().Count(wfmsim.EndpointCapabilities)
			r.running()
			r.publish(r.Deployment(demoID, map[string]any{"GREETING": parameter}))
			r.hears(demoID, margo.Pending, margo.Installing, margo.Installed, margo.Pending, margo.Installing, margo.Installed)
			expect.Equal(t, r.answers(8090).Greeting, parameter, "the application")
			if n := r.WFM.Requests().Count(wfmsim.EndpointCapabilities) - before; n != 0 {
				t.Errorf("capabilities were reported %d times after a restart", n)
			}
			if n := r.WFM.Requests().Count(wfmsim.EndpointOnboarding); r.WFM.Revision() != margo.RC3 && n != 1 {
				t.Errorf("onboarded %d times", n)
			}

			r.remove(demoID)
			r.hears(demoID, margo.Pending, margo.Installing, margo.Installed, margo.Pending, margo.Installing, margo.Installed,
				margo.Removing, margo.Removed)
			r.isAsBefore(t.Context())
			for _, request := range r.WFM.Requests().Requests() {
				expect.True(t, request.Status < 400, "%s %s was answered %d", request.Method, request.Path, request.Status)
				has := r.WFM.Revision() != margo.RC3 && request.Endpoint != wfmsim.EndpointRoot
				expect.Equal(t, request.Header["Signature-Input"] != "", has, "%s %s: signed", request.Method, request.Path)
			}
			if n := r.WFM.Requests().Count(wfmsim.EndpointManifest); c.way.Repository && n != 0 {
				t.Errorf("the WFM that hears the reports was asked %d times for the desired state", n)
			}
			expect.Equal(t, r.WFM.Replayed(), 0, "signatures came twice")
			log := expect.Value(os.ReadFile(r.LogFile()))(t)
			history := expect.Value(r.margolite("history", "--json"))(t)
			keys := expect.Value(filepath.Glob(filepath.Join(r.Dir(), "identity", "*.key")))(t)
			secrets := []string{parameter, plant.GatewaySecret, plant.GatewayToken, plant.RepositoryToken}
			for _, key := range keys {
				pem := expect.Value(os.ReadFile(key))(t)
				secrets = append(secrets, strings.Split(string(pem), "\n")[1])
			}
			for what, text := range map[string]string{"the log": string(log), "the journal": history, "status": status} {
				for _, secret := range secrets {
					expect.True(t, !strings.Contains(text, secret), "%s tells %q", what, secret)
				}
			}
		})
	}
}
