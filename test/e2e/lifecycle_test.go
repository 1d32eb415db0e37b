package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

const demoID = "ad9b614e-8912-45f4-a523-372358765def"

// Services reach each other by name and the host reaches the published port;
// an update recreates only what changed and keeps the volume; a removal leaves
// nothing but the volume; the WFM hears of each step, in order.
func TestDS29DS30ST01ST17POL14DEV01InstallUpdateRemove(t *testing.T) {
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		r.install(r.Deployment(demoID, nil))
		first := r.answers(8090)
		expect.True(t, first.Greeting == "Hello" && first.Visit == 1, "the application says %+v, want the first visit and Hello", first)
		before := r.services(demoID)
		expect.Require(t, len(before) == 2, "services are %+v, want web and counter", before)

		// Whoever fills the directory of lock files takes nobody's memory.
		filler := filepath.Join(r.LockDir(), "filler")
		expect.Error(t, os.WriteFile(filler, make([]byte, 8<<20), 0o600), unix.ENOSPC, "8 MiB in a lock file")
		expect.Check(t, os.Remove(filler))

		// A parameter that only the web service uses.
		r.install(r.Deployment(demoID, map[string]any{"GREETING": "Servus"}))
		second := r.answers(8090)
		if second.Greeting != "Servus" || second.Visit != first.Visit+1 {
			t.Errorf("after the update it says %+v, want Servus and visit %d", second, first.Visit+1)
		}
		after := r.services(demoID)
		if same, same2 := after["counter"], before["counter"]; same.Container != same2.Container || same.Pid != same2.Pid {
			t.Errorf("the update touched service counter: %+v was %+v", same, same2)
		}
		expect.True(t, after["web"].Container != before["web"].Container, "the update did not recreate service web")
		if after["web"].Address != before["web"].Address {
			t.Errorf("service web moved from %s to %s", before["web"].Address, after["web"].Address)
		}

		// Another image for both: the volume stays.
		r.install(r.Deployment(demoID, map[string]any{"GREETING": "Servus", "TAG": "2.0.0"}))
		third := r.answers(8090)
		if third.Version != "2.0.0" || third.Visit != second.Visit+1 {
			t.Errorf("after the new image it says %+v, want version 2.0.0 and visit %d", third, second.Visit+1)
		}

		r.await(demoID, margo.Removed, r.remove(demoID))
		r.isAsBefore(r.t.Context())
		expect.True(t, expect.ErrorOf(plant.Ask(t.Context(), 8090)) != nil, "the removed application still answers")
		if volumes, _ := filepath.Glob(filepath.Join(r.StateDir(), "volumes", "*", "data", "*")); len(volumes) == 0 {
			t.Error("the removal took the named volume along")
		}
		if s := r.status(); len(s.Deployments) != 0 || s.Outbox != 0 {
			t.Errorf("status still shows %+v", s)
		}

		var heard []string
		for _, report := range r.WFM.Statuses(demoID) {
			heard = append(heard, fmt.Sprintf("%s@%d", report.Status.State, report.Status.AdoptedVersion))
		}
		want := []string{
			"pending@2", "installing@2", "installed@2",
			"pending@2", "installing@3", "installed@3",
			"pending@3", "installing@4", "installed@4",
			"removing@5", "removed@5",
		}
		expect.True(t, slices.Equal(heard, want), "the WFM heard\n%v, want\n%v", heard, want)
	})
}

// A second agent on the same state directory is refused, and harms nothing.
func TestDEV02SecondAgentIsRefused(t *testing.T) {
	long(t, "a second agent")
	r := newRig(t, "embedded")
	r.running()
	if out, err := r.margolite("run"); err == nil {
		t.Errorf("a second agent ran: %s", out)
	}
	r.status()

	// Directories of its own are not enough: bridges and rules are shared.
	r.install(r.Deployment(demoID, nil))
	config := expect.Value(os.ReadFile(r.ConfigFile()))(t)
	other := filepath.Join(r.Dir(), "other.yaml")
	expect.Check(t, os.WriteFile(other, []byte(strings.ReplaceAll(string(config), r.Dir()+"/", filepath.Join(r.Dir(), "other")+"/")), 0o600))
	cmd := exec.Command(filepath.Join(plant.ProgramsDir(), "margolite"), "run", "--config", other)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), fmt.Sprintf("process %d", r.Agent())) {
		t.Errorf("a second agent with directories of its own: %v: %s", err, out)
	}
	r.answers(8090)
}
