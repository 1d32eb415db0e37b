package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/margolite/margolite/cmd/margolite/config"
)

const collectorWait = 2 * time.Second

// collector checks for the collector that a device with workloads must have (OBS-01), also at the
// standard addresses. The capabilities claim one in any case (CAP-04).
func (f *findings) collector(ctx context.Context, cfg *config.Config, standard []string) {
	const object = "collector"
	before := len(*f)
	for _, at := range []struct{ key, url string }{
		{"metrics.otlp", cfg.Metrics.OTLP}, {"collector.http", cfg.Collector.HTTP}, {"collector.grpc", cfg.Collector.GRPC},
	} {
		if at.url == "" {
			continue
		}
		var unknown *net.DNSError
		switch err := answers(ctx, addressOf(at.url)); {
		case err == nil:
			f.fine(object, fmt.Sprintf("%s answers, as %s says", at.url, at.key))
		case errors.As(err, &unknown) && at.key != "metrics.otlp":
			// It may be a service, named in the network of a project.
			f.fine(object, fmt.Sprintf("%s is not checked: its name may be known inside containers only", at.url))
		default:
			f.warning(object, fmt.Sprintf("%s does not answer: %v", at.url, err), "start a collector there, or correct "+at.key)
		}
	}
	if len(*f) > before {
		return
	}
	for _, address := range standard {
		if answers(ctx, address) == nil {
			f.warning(object, "a collector listens on "+address+", but the configuration does not name it", "set metrics.otlp to it, and collector to its address as seen from containers")
			return
		}
	}
	f.fine(object, "none found; the standard requires an OpenTelemetry collector on each device that runs workloads")
}

func answers(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, collectorWait)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

func addressOf(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return s // the configuration takes precedence
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme]))
}
