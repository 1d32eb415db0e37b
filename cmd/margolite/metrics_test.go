package main

import (
	"strings"
	"testing"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/test/expect"
)

// What a document has put into a label does nothing to a terminal.
func TestMetricsArePrinted(t *testing.T) {
	got := call(t, "metrics", "--config", serve(t, &fakeAgent{}))
	if got.code != command.Done || got.err != "" || !strings.Contains(got.out, "margolite_container_running{") || strings.Contains(got.out, "\x1b") {
		t.Errorf("it printed %+v", got)
	}
}

func TestOBS08WorkloadsHearOfTheCollector(t *testing.T) {
	for name, c := range map[string]struct {
		config config.Collector
		want   string
	}{
		"none": {config.Collector{}, ""},
		"HTTP": {config.Collector{HTTP: "http://172.17.0.1:4318"}, "HTTP_OTEL_EXPORTER_OTLP_ENDPOINT=http://172.17.0.1:4318"},
		"both": {
			config.Collector{HTTP: "http://172.17.0.1:4318", GRPC: "http://172.17.0.1:4317"},
			"HTTP_OTEL_EXPORTER_OTLP_ENDPOINT=http://172.17.0.1:4318 GRPC_OTEL_EXPORTER_OTLP_ENDPOINT=http://172.17.0.1:4317",
		},
		"a protocol": {
			config.Collector{HTTP: "http://172.17.0.1:4318", Protocol: "grpc"},
			"HTTP_OTEL_EXPORTER_OTLP_ENDPOINT=http://172.17.0.1:4318 OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
		},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, strings.Join(collectorEnvironment(c.config), " "), c.want, "environment")
		})
	}
}
