package main

import (
	"context"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/cmd/margolite/config"
)

func (c *cli) metrics(*command.Flags) command.Action {
	return c.asks(func(ctx context.Context, client *control.Client, _ []string) error {
		return client.Metrics(ctx, plainWriter{c.out}) // labels contain untrusted names
	})
}

// collectorEnvironment tells workloads this device's collector (OBS-08).
func collectorEnvironment(c config.Collector) []string {
	var env []string
	for _, v := range []struct{ name, value string }{
		{"HTTP_OTEL_EXPORTER_OTLP_ENDPOINT", c.HTTP}, {"GRPC_OTEL_EXPORTER_OTLP_ENDPOINT", c.GRPC}, {"OTEL_EXPORTER_OTLP_PROTOCOL", c.Protocol},
	} {
		if v.value != "" {
			env = append(env, v.name+"="+v.value)
		}
	}
	return env
}
