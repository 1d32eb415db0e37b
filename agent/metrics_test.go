package agent_test

import (
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// What can be counted is text that Prometheus takes, tells what there is, holds
// nothing secret, and costs no write.
func TestOBS09OBS11Metrics(t *testing.T) {
	s := newSite(t)
	s.bothInstalled()
	s.runtime.fail("apply 2.0.0", runtime.Exited)
	s.publish(2, map[string]string{first: document(first, "2.0.0"), second: document(second, "1.0.0")})
	s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "installing@2", "failed@2")
	s.eventually("what worked is back", func() bool { return s.record().Return == "" })
	s.wfm.publish(1, nil)
	s.refuses()
	s.quiet()
	check(t, s.store.Commit("nothing", store.Change{})) // waits for what is being written
	writes := s.store.Writes()
	text := expect.Value(s.agent.Metrics(t.Context()))(t)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families := expect.Value(parser.TextToMetricFamilies(strings.NewReader(string(text))))(t)
	for name, f := range families {
		if f.GetHelp() == "" || strings.HasSuffix(name, "_total") != (f.GetType().String() == "COUNTER") {
			t.Errorf("%s is a %v with help %q", name, f.GetType(), f.GetHelp())
		}
	}
	for _, want := range []string{
		`margolite_polls_total{result="refused"} 1`, `margolite_polls_total{result="failure"} 0`,
		"margolite_manifest_version 2", `margolite_deployments{state="installed"} 1`, `margolite_deployments{state="failed"} 1`,
		`margolite_deployments{state="removing"} 0`, "margolite_outbox_reports 0", "margolite_outbox_oldest_seconds 0",
		"margolite_store_failing 0", "margolite_panics_total 0", "margolite_runtime_up 1", `margolite_loop_busy_seconds{loop="poller"}`,
		`margolite_container_running{deployment="` + second + `",component="main",project="` + second + `-main",service="web",number="0"} 1`,
		"margolite_last_successful_poll_timestamp_seconds ", "process_resident_memory_bytes ",
	} {
		expect.Contains(t, string(text), want, "metrics")
	}
	expect.Equal(t, strings.Contains(string(text), "wfm.example"), false, "the metrics tell where the WFM is")
	s.wroteNothing(writes)
	again := expect.Value(s.agent.Metrics(t.Context()))(t)
	expect.Equal(t, string(again), string(text), "metrics asked for at once")
}
