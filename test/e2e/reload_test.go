package e2e

import (
	"os"
	"testing"

	"github.com/margolite/margolite/test/wfmsim"
)

// A changed configuration is taken over at SIGHUP, without a restart and without
// a touch of what runs; a broken one changes nothing.
func TestPOL04CAP03ConfigurationIsTakenOver(t *testing.T) {
	long(t, "a new configuration")
	r := newRig(t, "embedded")
	first := usual
	first.LogLevel = "info"
	check(t, r.Configure(first))
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.quiet()
	before, agent := r.services(demoID), r.Agent()

	// takenOver waits until the agent says that it took over, or would not.
	answered := func(log int, words ...string) {
		t.Helper()
		r.eventually("the configuration was looked at", func() error {
			if len(r.logged(log, words...)) == 0 {
				return &unlike{"not", "in the log"}
			}
			return nil
		})
	}
	t.Run("CAP-03 labels", func(t *testing.T) {
		r.t = t
		n, log := r.asked(), r.logLength()
		labelled := first
		labelled.Labels = map[string]string{"plant.example/hall": "four"}
		check(t, r.Reconfigure(labelled))
		answered(log, "configuration taken over", "changed=device")
		r.eventually("the new label is reported", func() error { return r.reportsLabel("plant.example/hall", "four") })
		if q := r.nextRequest(n, 0, wfmsim.EndpointCapabilities); q.Method != "PUT" {
			t.Errorf("capabilities are reported by %s", q.Method)
		}
		r.untouched(demoID, before)
	})
	t.Run("a configuration that is wrong", func(t *testing.T) {
		r.t = t
		text, err := os.ReadFile(r.ConfigFile())
		check(t, err)
		log := r.logLength()
		check(t, os.WriteFile(r.ConfigFile(), append(text, "often: true\n"...), 0o600))
		check(t, r.Reload())
		answered(log, "level=ERROR", "the former one stays in force")
		check(t, os.WriteFile(r.ConfigFile(), text, 0o600))
		n := r.asked()
		r.nextRequest(n, 304, wfmsim.EndpointManifest) // it is polled as often as before
		r.refusesChart(r.publishedAndSynced(1, 3))
		r.untouched(demoID, before)
	})
	r.t = t
	if r.Agent() != agent {
		t.Error("the agent was started again")
	}
}
