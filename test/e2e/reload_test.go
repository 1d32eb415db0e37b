package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

// A changed configuration is taken over at SIGHUP, without a restart and without
// a touch of what runs; a broken one changes nothing.
func TestPOL04CAP03ConfigurationIsTakenOver(t *testing.T) {
	long(t, "a new configuration")
	r := newRig(t, "embedded")
	first := usual
	first.LogLevel = "info"
	expect.Check(t, r.Configure(first))
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.quiet()
	before, agent := r.services(demoID), r.Agent()

	// answered waits until the agent says that it took over, or would not.
	answered := func(log int, words ...string) {
		t.Helper()
		plant.Require(r.t, "the configuration was looked at", func() error {
			if len(r.logged(log, words...)) == 0 {
				return fmt.Errorf("no line of the log has %q", words)
			}
			return nil
		})
	}
	t.Run("CAP-03 POL-04 labels and the interval", func(t *testing.T) {
		r.t = t
		log := r.logLength()
		changed := first
		changed.Labels, changed.Poll = map[string]string{"plant.example/hall": "four"}, 10*time.Hour
		expect.Check(t, r.Reconfigure(changed))
		answered(log, "configuration applied", "device", "poll")
		plant.Require(r.t, "the new label is reported", func() error {
			if d := r.WFM.Devices(plant.Client); len(d) != 1 || !strings.Contains(string(d[0].Body), `"plant.example/hall":"four"`) {
				return fmt.Errorf("the WFM knows %s", d)
			}
			return nil
		})
		expect.Check(t, r.sync())
		if s := r.status().WFM; s.NextPoll.IsZero() || time.Until(s.NextPoll) < 5*time.Hour {
			t.Errorf("the next poll is at %v", s.NextPoll)
		}
		r.untouched(demoID, before)
	})
	t.Run("a configuration that is wrong", func(t *testing.T) {
		r.t = t
		text := expect.Value(os.ReadFile(r.ConfigFile()))(t)
		log := r.logLength()
		expect.Check(t, os.WriteFile(r.ConfigFile(), append(text, "often: true\n"...), 0o600))
		expect.Check(t, r.Reload())
		answered(log, "level=ERROR", "the previous one stays in force")
		expect.Check(t, os.WriteFile(r.ConfigFile(), text, 0o600))
		r.synced()
		r.untouched(demoID, before)
	})
	r.t = t
	expect.Check(t, r.Reconfigure(first)) // so that the agent polls until the rig is taken down
	expect.Equal(t, r.Agent(), agent, "the agent was started again")
}
