package main

import (
	"net"
	"strings"
	"testing"

	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/test/expect"
)

func TestCheckLooksForACollector(t *testing.T) {
	l := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	closed := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	nobody := closed.Addr().String()
	check(t, closed.Close())
	there := l.Addr().String()
	for name, test := range map[string]struct {
		metrics, workloads string // what is configured
		standard           string
		want               string
		result             string
	}{
		"it answers":                      {"http://" + there, "", nobody, "answers, as metrics.otlp says", "ok"},
		"it does not answer":              {"", "http://" + nobody, there, "does not answer", "warning"},
		"only workloads know its name":    {"", "http://otel.invalid:4318", there, "known inside containers only", "ok"},
		"the agent itself has to know it": {"https://otel.invalid", "", there, "does not answer", "warning"},
		"nobody was told of it":           {"", "", there, "listens on " + there, "warning"},
		"none found":                      {"", "", nobody, "none found", "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Default()
			cfg.Metrics.OTLP, cfg.Collector.HTTP = test.metrics, test.workloads
			var found findings
			found.collector(t.Context(), cfg, []string{test.standard})
			if len(found) != 1 || !strings.Contains(found[0].Text, test.want) || found[0].Result != test.result {
				t.Errorf("got %+v, want %q, %s", found, test.want, test.result)
			}
		})
	}
}
