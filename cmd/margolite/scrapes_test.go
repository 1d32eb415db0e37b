package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// asked serves metrics on a port of the loopback and returns its address.
func asked(t *testing.T, answer func(context.Context) ([]byte, error)) string {
	t.Helper()
	l := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := &scrapes{metrics: answer, logger: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		expect.OK(t, <-ended)
	})
	return l.Addr().String()
}

func TestMetricsAreServedAndNothingElse(t *testing.T) {
	calls := 0
	address := asked(t, func(context.Context) ([]byte, error) {
		if calls++; calls > 1 {
			panic("no numbers")
		}
		return []byte("up 1\n"), nil
	})
	for _, c := range []struct {
		method, path string
		code         int
		body         string
	}{
		{"GET", "/metrics", http.StatusOK, "up 1\n"},
		{"GET", "/metrics", http.StatusInternalServerError, "internal error; see the log of the agent\n"},
		{"POST", "/metrics", http.StatusMethodNotAllowed, ""},
		{"GET", "/v1/status", http.StatusNotFound, ""},
		{"GET", "/debug/pprof/", http.StatusNotFound, ""},
	} {
		req := expect.Value(http.NewRequestWithContext(t.Context(), c.method, "http://"+address+c.path, nil))(t)
		res := expect.Value(http.DefaultClient.Do(req))(t)
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != c.code || c.body != "" && string(body) != c.body {
			t.Errorf("%s %s: %d %q %v, want %d", c.method, c.path, res.StatusCode, body, err, c.code)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// Callers that are silent take no more than their places, and who comes after them
// is served once one of them leaves.
func TestSilentCallersOfMetricsAreFew(t *testing.T) {
	address := asked(t, func(context.Context) ([]byte, error) { return []byte("up 1\n"), nil })
	var silent []net.Conn
	for range maxScrapers {
		conn := expect.Value(net.Dial("tcp", address))(t)
		defer conn.Close()
		silent = append(silent, conn)
	}
	conn := expect.Value(net.Dial("tcp", address))(t)
	defer conn.Close()
	expect.Value(io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))(t)
	silent[0].Close()
	res := expect.Value(http.ReadResponse(bufio.NewReader(conn), nil))(t)
	defer res.Body.Close()
	expect.Equal(t, string(expect.Value(io.ReadAll(res.Body))(t)), "up 1\n", "answer")
}
