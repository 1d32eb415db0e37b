// Demoapp is the application of the demonstration: a page that greets and counts
// its visits, in two services.
//
//	demoapp web       serves the page and asks the counter for the number
//	demoapp counter   counts, and keeps the count in a file
//	demoapp healthy   asks the service in its own container whether it works
//
// The two find each other by service name, the count is on a volume, and both
// leave at SIGTERM with exit code 0. It uses nothing but the standard library.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		slog.Error("demoapp failed", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: demoapp web|counter|healthy")
	}
	switch args[0] {
	case "web":
		w := web{
			greeting: env("GREETING", "Hello"),
			plant:    env("PLANT", "plant A"),
			version:  os.Getenv("VERSION"),
			counter:  env("COUNTER_URL", "http://counter:9090/next"),
			started:  time.Now().UTC(),
		}
		return serve(ctx, env("LISTEN", ":8080"), w.routes())
	case "counter":
		c, err := openCounter(env("COUNT_FILE", "/data/count"))
		if err != nil {
			return err
		}
		return serve(ctx, env("LISTEN", ":9090"), c.routes())
	case "healthy":
		return healthy(ctx, env("HEALTH_URL", "http://127.0.0.1:8080/healthz"))
	default:
		return fmt.Errorf("unknown role %q, want web, counter or healthy", args[0])
	}
}

// serve answers until the context ends, and lets requests in progress finish.
func serve(ctx context.Context, address string, handler http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	slog.Info("serving", "address", listener.Addr().String())
	select {
	case err := <-failed:
		return fmt.Errorf("cannot serve: %w", err)
	case <-ctx.Done():
	}
	slog.Info("stopping")
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err = server.Shutdown(grace)
	<-failed
	return err
}

func healthy(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, answer.Status)
	}
	return nil
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
