package main

import (
	"net"
	"strings"
	"testing"

	"github.com/margolite/margolite/cmd/margolite/config"
)

func TestCheckLooksForACollector(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	there := l.Addr().String()
	for name, test := range map[string]struct {
		metrics, workloads string // what is configured
		standard           string
		want               string
		warns              bool
	}{
		"it answers":                      {"http://" + there, "", nobody, "answers, as metrics.otlp says", false},
		"it does not answer":              {"", "http://" + nobody, there, "does not answer", true},
		"only workloads know its name":    {"", "http://otel.invalid:4318", there, "known inside containers only", false},
		"the agent itself has to know it": {"https://otel.invalid", "", there, "does not answer", true},
		"nobody was told of it":           {"", "", there, "listens on " + there, true},
		"none found":                      {"", "", nobody, "none found", false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Default()
			cfg.Metrics.OTLP, cfg.Collector.HTTP = test.metrics, test.workloads
			found := collectorFindings(t.Context(), cfg, []string{test.standard})
			if len(found) != 1 || !strings.Contains(found[0].text, test.want) || found[0].mend != "" != test.warns || found[0].fatal {
				t.Errorf("got %+v, want %q, warning %v", found, test.want, test.warns)
			}
		})
	}
}
