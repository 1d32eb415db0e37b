package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/metrics"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/runtime/contain"
)

const (
	maxScrapers = 8
	// scrapeTimeout bounds each request; listenAgain is the time between attempts to listen, as an
	// address may come with the network.
	scrapeTimeout = 10 * time.Second
	listenAgain   = 30 * time.Second
)

// metersOf returns the configured publishers of metrics, each running until its ctx is done. The
// agent's options are told of them.
func metersOf(cfg *config.Config, o *agent.Options, a func() *agent.Agent) (all []func(context.Context) error) {
	if cfg.Metrics.Listen != "" {
		s := &scrapes{address: cfg.Metrics.Listen, metrics: func(ctx context.Context) ([]byte, error) { return a().Metrics(ctx) }, logger: o.Logger}
		all = append(all, s.run)
	}
	if cfg.Metrics.OTLP != "" {
		e := &metrics.Exporter{
			URL: cfg.Metrics.OTLP, Interval: cfg.Metrics.Interval,
			Resource: []string{"service.name", "margolite", "service.version", o.Program.Version, "service.instance.id", o.Settings.Device.ID},
			Start:    o.Program.Started, Now: o.Now,
			Families: func(ctx context.Context) metrics.Families { return a().Families(ctx) },
		}
		o.Exports = e.Done
		all = append(all, e.Run)
	}
	return all
}

type scrapes struct {
	address string
	metrics func(context.Context) ([]byte, error)
	logger  *slog.Logger
}

// run listens as soon as possible: nothing else waits for it.
func (s *scrapes) run(ctx context.Context) error {
	address := s.address
	if strings.HasPrefix(address, ":") {
		address = "127.0.0.1" + address
	}
	said := ""
	for {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err == nil {
			said = ""
			s.logger.Info("metrics are available", "address", l.Addr().String())
			err = s.serve(ctx, l)
		}
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if err.Error() != said {
			said = err.Error()
			s.logger.Warn("cannot listen for metrics requests; will retry", "address", address, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenAgain):
		}
	}
}

func (s *scrapes) serve(ctx context.Context, l net.Listener) error {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /metrics", s.answer)
	server := &http.Server{
		Handler: routes, ReadTimeout: scrapeTimeout, WriteTimeout: 2 * scrapeTimeout, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.logger.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(netutil.LimitListener(l, maxScrapers)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve metrics: %w", err)
	}
	return nil
}

func (s *scrapes) answer(w http.ResponseWriter, r *http.Request) {
	var text []byte
	err := contain.Call(func() (err error) {
		text, err = s.metrics(r.Context())
		return err
	})
	if err != nil {
		s.logger.Warn("cannot answer a metrics request", "error", err)
		http.Error(w, "internal error; see the log of the agent", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", control.MetricsType)
	_, _ = w.Write(text) // a caller that is gone needs no answer
}
