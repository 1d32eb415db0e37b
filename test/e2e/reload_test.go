package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/test/wfmsim"
)

// A changed configuration is taken over at SIGHUP, without a restart and without
// a touch of what runs; a broken one changes nothing.
func TestPOL04CAP03ConfigurationIsTakenOver(t *testing.T) {
	long(t, "the rest of policy")
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
	t.Run("POL-04 the interval", func(t *testing.T) {
		r.t = t
		log := r.logLength()
		seldom := first
		seldom.Poll = 10 * time.Hour
		check(t, r.Reconfigure(seldom))
		answered(log, "configuration taken over", "poll")
		check(t, r.sync())
		if s := r.status().WFM; s.NextPoll == nil || time.Until(*s.NextPoll) < 5*time.Hour {
			t.Errorf("the next poll is at %v", s.NextPoll)
		}
	})
	t.Run("the level of the log", func(t *testing.T) {
		r.t = t
		silent := first
		silent.LogLevel = "error"
		silent.Labels = map[string]string{"plant.example/hall": "five"}
		log := r.logLength()
		check(t, r.Reconfigure(silent))
		r.eventually("the new label is reported", func() error { return r.reportsLabel("plant.example/hall", "five") })
		r.refusesChart(r.publishedAndSynced(1, 1))
		if lines := append(r.logged(log, "level=INFO"), r.logged(log, "level=WARN")...); len(lines) > 0 {
			t.Errorf("errors alone are to be logged: %q", lines)
		}
		check(t, r.Reconfigure(first))
		answered(log, "configuration taken over", "log")
	})
	t.Run("the WFM is elsewhere", func(t *testing.T) {
		r.t = t
		was := r.WFM.URL()
		check(t, r.WFM.Close())
		check(t, r.WFM.Start("127.0.0.1:0"))
		log := r.logLength()
		check(t, r.Reconfigure(first))
		answered(log, "configuration taken over", "changed=wfm")
		r.synced()
		r.refusesChart(r.publishedAndSynced(1, 2))
		if s := r.status().WFM; s.URL != r.WFM.URL() || s.URL == was {
			t.Errorf("status says %s, want %s", s.URL, r.WFM.URL())
		}
		r.untouched(demoID, before)
	})
	t.Run("a configuration that is wrong", func(t *testing.T) {
		r.t = t
		text, err := os.ReadFile(r.ConfigFile())
		check(t, err)
		for _, wrong := range []string{
			"nonsense",
			strings.Replace(string(text), "poll: {interval: 1s", "poll: {interval: 10h, often: true", 1),
			strings.Replace(string(text), "https://", "http://", 1),
			strings.Replace(string(text), `"url"`, `"site"`, 1),
		} {
			if wrong == string(text) {
				t.Fatal("the configuration is not wrong")
			}
			log := r.logLength()
			check(t, os.WriteFile(r.ConfigFile(), []byte(wrong), 0o600))
			check(t, r.Reload())
			answered(log, "level=ERROR", "the former one stays in force")
		}
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
