package metrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// exportTimeout bounds one export, and maxAnswer the bytes read of its answer.
	exportTimeout = 10 * time.Second
	maxAnswer     = 64 << 10
	// exportMost bounds the time between attempts while the collector does not answer.
	exportMost = 15 * time.Minute
)

// Exporter sends metrics to a collector periodically. Failed exports are dropped: the next one has
// newer numbers. Done reports failures.
type Exporter struct {
	// URL is the base of the collector; metrics go to /v1/metrics below it.
	URL      string
	Interval time.Duration
	Resource []string // describes the device: name, value, name, value ...
	Start    time.Time
	Now      func() time.Time
	Families func(context.Context) Families

	mu       sync.Mutex
	sent     int64
	failures int64
	last     error
}

// Run exports until ctx is done.
func (e *Exporter) Run(ctx context.Context) error {
	client := &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, IdleConnTimeout: exportTimeout},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	defer client.CloseIdleConnections()
	wait := e.Interval
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		err := e.export(ctx, client)
		if ctx.Err() != nil {
			return nil
		}
		if e.note(err); err == nil {
			wait = e.Interval
		} else {
			wait = max(min(2*wait, exportMost), e.Interval)
		}
	}
}

func (e *Exporter) export(ctx context.Context, client *http.Client) error {
	ctx, cancel := context.WithTimeout(ctx, exportTimeout)
	defer cancel()
	var body bytes.Buffer
	packed := gzip.NewWriter(&body)
	_, _ = packed.Write(OTLP(e.Families(ctx), e.Resource, e.Start, e.Now())) // writes to a buffer do not fail
	_ = packed.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(e.URL, "/")+"/v1/metrics", &body)
	if err != nil {
		return fmt.Errorf("cannot export metrics: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Content-Encoding", "gzip")
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("cannot export metrics: %w", err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer)) // so that the connection can be used again
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("cannot export metrics: the collector answered %s", res.Status)
	}
	return nil
}

func (e *Exporter) note(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = err
	if err == nil {
		e.sent++
	} else {
		e.failures++
	}
}

// Done returns how many exports succeeded and failed since Run began, and the last one's error.
func (e *Exporter) Done() (sent, failures int64, last error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sent, e.failures, e.last
}
