package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
)

// ST-19 DS-27: a device that knows nothing but a repository: its desired state comes from
// one branch, and what became of it is on another.
func TestST19GitOpsWithoutAWFM(t *testing.T) {
	long(t, "a repository alone")
	r := newRigBy(t, plant.Way{Repository: true, ReportsThere: true})
	tells := func(want ...string) {
		t.Helper()
		r.eventually("the branch tells it", func() error {
			out, err := r.Repository.Repository.Git("", "log", "--reverse", "--format=%s", "state")
			if got := strings.Split(strings.TrimSpace(out), "\n"); err != nil || !slices.Equal(got, want) {
				return fmt.Errorf("it tells %q, %v; want %q", got, err, want)
			}
			return nil
		})
	}
	state := func(s margo.State) string { return "Deployment " + demoID + ": " + string(s) }
	r.running()
	r.publish(r.Deployment(demoID, nil))
	want := []string{"Capabilities of device " + plant.Device, state(margo.Pending), state(margo.Installing), state(margo.Installed)}
	tells(want...)
	if a := r.answers(8090); a.Greeting != "Hello" {
		t.Errorf("the application says %+v", a)
	}
	if out, err := r.margolite("check"); err != nil || !strings.Contains(out, "#state:"+plant.Device) {
		t.Errorf("check says %s, %v", out, err)
	}
	r.stop()
	r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus"}))
	r.running()
	want = append(want, state(margo.Pending), state(margo.Installing), state(margo.Installed))
	tells(want...)
	text, err := r.Repository.Repository.Git("", "show", "state:"+plant.Device+"/deployments/"+demoID+".json")
	if err != nil || !strings.Contains(text, `"state": "installed"`) {
		t.Errorf("the document reads %s, %v", text, err)
	}

	r.remove(demoID) // the last document of the folder
	want = append(want, state(margo.Removing), state(margo.Removed))
	tells(want...)
	r.isAsBefore(t.Context())
}
