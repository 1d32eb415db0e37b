package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func get(t *testing.T, url, accept string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func TestThePageGreetsAndCounts(t *testing.T) {
	c, err := openCounter(filepath.Join(t.TempDir(), "count"))
	if err != nil {
		t.Fatal(err)
	}
	counting := httptest.NewServer(c.routes())
	defer counting.Close()
	page := httptest.NewServer(web{greeting: "Hello <you>", plant: "plant A", counter: counting.URL + "/next"}.routes())
	defer page.Close()

	if status, body := get(t, page.URL, ""); status != 200 || body != "Hello <you> from plant A, visit 1\n" {
		t.Errorf("got %d, %q", status, body)
	}
	var v visit
	if _, body := get(t, page.URL, "application/json"); json.Unmarshal([]byte(body), &v) != nil || v.Visit != 2 || v.Greeting != "Hello <you>" {
		t.Errorf("got %q", body)
	}
	if _, body := get(t, page.URL, "text/html"); !strings.Contains(body, "Hello &lt;you&gt; from plant A, visit 3") {
		t.Errorf("got %q", body)
	}
	counting.Close()
	if status, _ := get(t, page.URL, ""); status != http.StatusBadGateway {
		t.Errorf("without the counter: got %d", status)
	}
}

func TestTheCountSurvivesARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "count")
	for want := uint64(1); want <= 3; want++ {
		c, err := openCounter(file)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.next(); err != nil || got != want {
			t.Errorf("got %d, %v, want %d", got, err, want)
		}
	}
	if err := os.WriteFile(file, []byte("many"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openCounter(file); err == nil {
		t.Error("nonsense was taken for a count")
	}
}

func TestServingEndsCleanly(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LISTEN", address)
	t.Setenv("COUNT_FILE", filepath.Join(t.TempDir(), "count"))
	t.Setenv("HEALTH_URL", "http://"+address+"/healthz")
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"counter"}) }()
	for run(context.Background(), []string{"healthy"}) != nil {
		select {
		case err := <-ended:
			t.Fatalf("ended with %v", err)
		default: // not listening yet
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAnUnknownRoleIsAnError(t *testing.T) {
	for _, args := range [][]string{nil, {"sing"}, {"web", "counter"}} {
		if err := run(context.Background(), args); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
