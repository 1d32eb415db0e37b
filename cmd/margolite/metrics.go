package main

import (
	"context"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/cmd/margolite/config"
)

func (c *cli) metrics(*command.Flags) command.Action {
	return c.asks(func(ctx context.Context, client *control.Client, _ []string) error {
		return client.Metrics(ctx, plainWriter{c.out}) // labels hold names of others
	})
}

// collectorEnvironment is how workloads find the collector of this device
// (OBS-08).
func collectorEnvironment(c config.Collector) []string {
	var env []string
	if c.HTTP != "" {
		env = append(env, "HTTP_OTEL_EXPORTER_OTLP_ENDPOINT="+c.HTTP)
	}
	if c.GRPC != "" {
		env = append(env, "GRPC_OTEL_EXPORTER_OTLP_ENDPOINT="+c.GRPC)
	}
	if c.Protocol != "" {
		env = append(env, "OTEL_EXPORTER_OTLP_PROTOCOL="+c.Protocol)
	}
	return env
}
