package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
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
		if first.Greeting != "Hello" || first.Visit != 1 {
			t.Errorf("the application says %+v, want the first visit and Hello", first)
		}
		before := r.services(demoID)
		if len(before) != 2 {
			t.Fatalf("services are %+v, want web and counter", before)
		}

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
		if after["web"].Container == before["web"].Container {
			t.Error("the update did not recreate service web")
		}
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
		if _, err := plant.Ask(t.Context(), 8090); err == nil {
			t.Error("the removed application still answers")
		}
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
		if !slices.Equal(heard, want) {
			t.Errorf("the WFM heard\n%v, want\n%v", heard, want)
		}
	})
}

// Two deployments of one application live side by side; components of a
// deployment that a revision no longer has are removed.
func TestDS17DeploymentsAndComponentsAreApart(t *testing.T) {
	long(t, "the rest of the protocol")
	const otherID = "ad9b614e-8912-45f4-a523-372358765dee" // shares all but its end
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		r.publish(r.Deployment(demoID, nil))
		two := r.Deployment(otherID, map[string]any{"PORT": 8091, "GREETING": "Moin"})
		r.install(two)
		r.await(demoID, margo.Installed, 1)
		if a, b := r.answers(8090), r.answers(8091); a.Greeting != "Hello" || b.Greeting != "Moin" || a.Visit != 1 || b.Visit != 1 {
			t.Errorf("the applications are not apart: %+v, %+v", a, b)
		}

		extra := r.Deployment(otherID, map[string]any{"PORT": 8091})
		extra.Components[0].Name = "renamed"
		r.install(extra)
		r.answers(8091)
		s := r.status()
		i := slices.IndexFunc(s.Deployments, func(d control.Deployment) bool { return d.ID == otherID })
		if i < 0 || len(s.Deployments[i].Components) != 1 || s.Deployments[i].Components[0].Name != "renamed" {
			t.Errorf("components are %+v", s.Deployments)
		}
		if out, err := r.margolite("compose", "ps", "--all", "--json"); err != nil {
			t.Error(err)
		} else if n := len(decode[[]control.Service](t, out)); n != 4 {
			t.Errorf("%d containers run, want two of each deployment: %s", n, out)
		}
		r.await(otherID, margo.Removed, r.remove(otherID))
		r.answers(8090)
	})
}

// An ordinary Compose file runs without a WFM, with the agent and without it.
func TestComposeWithoutWFM(t *testing.T) {
	long(t, "the rest of the program")
	onBackends(t, func(t *testing.T, r *rig) {
		file, err := filepath.Abs("../demoapp/package/compose.yaml")
		check(t, err)
		t.Setenv("REGISTRY", r.Registry.Address())
		t.Setenv("PORT", "8095")
		r.keepsImages = true // as Docker does
		for _, mode := range []string{"agent", "alone"} {
			if mode == "agent" {
				r.running()
			}
			out, err := r.margolite("compose", "up", "-f", file, "-p", "trial")
			check(t, err)
			if a := r.answers(8095); a.Visit == 0 {
				t.Errorf("%s: the application says %+v; up printed %s", mode, a, out)
			}
			out, err = r.margolite("compose", "ps", "-p", "trial", "--json")
			check(t, err)
			for _, s := range decode[[]control.Service](t, out) {
				if s.State != "running" {
					t.Errorf("%s: service %+v does not run", mode, s)
				}
			}
			if out, err = r.margolite("compose", "logs", "-p", "trial", "web"); err != nil || out == "" {
				t.Errorf("%s: logs are %q, %v", mode, out, err)
			}
			if _, err = r.margolite("compose", "logs", "-p", "nonesuch"); err == nil || !strings.Contains(err.Error(), "there are trial") {
				t.Errorf("%s: logs of a project that is not there: %v", mode, err)
			}
			command := exec.CommandContext(t.Context(), filepath.Join(programs.dir, "margolite"),
				"--config", r.ConfigFile(), "compose", "-p", "trial", "exec", "-T", "web", "/demoapp", "nonsense")
			said, err := command.CombinedOutput()
			if code := command.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(said), "nonsense") {
				t.Errorf("%s: a command in the container ended with %d, %v, and said %q", mode, code, err, said)
			}
			if _, err = r.margolite("compose", "down", "-p", "trial", "--volumes"); err != nil {
				t.Error(err)
			}
			if _, err = r.margolite("compose", "down", "-p", "trial"); err != nil {
				t.Errorf("%s: the second time: %v", mode, err)
			}
			r.isAsBefore(r.t.Context())
			if mode == "agent" {
				r.stop()
			}
		}
	})
}

// What a deployment prints can be read by its name, and followed.
func TestLogsOfADeployment(t *testing.T) {
	long(t, "the rest of the program")
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		r.install(r.Deployment(demoID, nil))
		r.answers(8090)
		for _, name := range []string{demoID, demoID[:8], "demo-deployment"} {
			out, err := r.margolite("logs", name, "web")
			if err != nil || out == "" {
				t.Errorf("logs %s: %q, %v", name, out, err)
			}
		}
		if _, err := r.margolite("logs", "nonesuch"); err == nil {
			t.Error("logs of a deployment that does not exist are no error")
		}
	})
}

// A second agent on the same state directory is refused, and harms nothing.
func TestDEV02SecondAgentIsRefused(t *testing.T) {
	long(t, "the rest of the program")
	r := newRig(t, "embedded")
	r.running()
	if out, err := r.margolite("run"); err == nil {
		t.Errorf("a second agent ran: %s", out)
	}
	r.status()

	// Directories of its own are not enough: bridges and rules are shared.
	r.install(r.Deployment(demoID, nil))
	config, err := os.ReadFile(r.ConfigFile())
	check(t, err)
	other := filepath.Join(r.dir, "other.yaml")
	check(t, os.WriteFile(other, []byte(strings.ReplaceAll(string(config), r.dir+"/", filepath.Join(r.dir, "other")+"/")), 0o600))
	cmd := exec.Command(filepath.Join(programs.dir, "margolite"), "run", "--config", other)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), fmt.Sprintf("process %d", r.Agent())) {
		t.Errorf("a second agent with directories of its own: %v: %s", err, out)
	}
	r.answers(8090)
}

// The WFM may know the device only later. One that said it has ended the
// relationship is left alone for long, unless somebody asks.
func TestUnacceptedClientBecomesAccepted(t *testing.T) {
	long(t, "the rest of the program")
	r := newRig(t, "embedded")
	r.WFM.Retire(plant.Client)
	r.running()
	r.eventually("the refusal is shown", func() error {
		if s := r.status(); s.WFM.LastError == "" {
			return errors.New("no error in status")
		}
		return nil
	})
	r.WFM.Reinstate(plant.Client)
	check(t, r.Control().Sync(t.Context()))
	r.install(r.Deployment(demoID, nil))
	r.answers(8090)
}

// A missing certificate leaves the device offline with its workloads running,
// is named by check, and the device is back as soon as the file is.
func TestMissingCertificateIsOffline(t *testing.T) {
	long(t, "the rest of identity")
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.stop()
	certificate := filepath.Join(r.dir, "identity", "device.pem")
	check(t, os.Rename(certificate, certificate+".away"))
	r.running()
	r.answers(8090)
	if out, err := r.margolite("check"); err == nil || !containsAll(out, "identity", certificate, "mend") {
		t.Errorf("check says %q, %v", out, err)
	}
	check(t, os.Rename(certificate+".away", certificate))
	r.install(r.Deployment(demoID, map[string]any{"GREETING": "Back"}))
	if out, err := r.margolite("check"); err != nil {
		t.Errorf("check on a good device: %v: %s", err, out)
	}
}

// Components are installed in order, each settled before the next.
func TestAD06AD13ComponentsInOrder(t *testing.T) {
	long(t, "the rest of the program")
	r := newRig(t, "embedded")
	r.running()
	d := r.Deployment(demoID, nil)
	second := wfmsim.Component{Name: "second", Repository: r.Registry.Address() + "/apps/second", Revision: "1.0.0"}
	r.pushComponent("apps/second", compose("second", "1.0.0", `
services:
  idle:
    image: ${REGISTRY}/margolite/demoapp:1.0.0
    command: [counter]
    environment: {DATA: /tmp}
    tmpfs: [/tmp, /data]
`))
	d.Components = append(d.Components, second)
	r.install(d)
	var heard []string
	for _, r := range r.WFM.Statuses(demoID) {
		line := string(r.Status.State)
		for _, c := range r.Status.Components {
			line += " " + c.Name + ":" + string(c.State)
		}
		heard = append(heard, line)
	}
	want := []string{
		"pending demo:pending second:pending",
		"installing demo:installing second:pending",
		"installing demo:installed second:installing",
		"installed demo:installed second:installed",
	}
	if !slices.Equal(heard, want) {
		t.Errorf("the WFM heard\n%q, want\n%q", heard, want)
	}
}
