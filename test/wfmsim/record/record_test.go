package record_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/margolite/margolite/test/wfmsim/record"
)

func TestRequestsAreRememberedInOrder(t *testing.T) {
	log := record.New(record.Options{
		Keep: 2, Header: []string{"Range"},
		Client: func(*http.Request) string { return "somebody" },
	})
	mux := http.NewServeMux()
	mux.Handle("/a", log.Wrap("a", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "12345") })))
	mux.Handle("/b", log.Wrap("b", http.NotFoundHandler()))
	mux.Handle("/cut", log.Wrap("cut", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })))
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, path := range []string{"/cut", "/b", "/a"} {
		request, err := http.NewRequest(http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Range", "bytes=0-")
		if answer, err := http.DefaultClient.Do(request); err == nil {
			_ = answer.Body.Close()
		}
	}
	if log.Count("a") != 1 || log.Count("cut") != 1 || log.Count("") != 3 {
		t.Errorf("counts: a %d, cut %d, all %d", log.Count("a"), log.Count("cut"), log.Count(""))
	}
	got := log.Requests()
	if len(got) != 2 {
		t.Fatalf("%d are remembered, want the newest 2", len(got))
	}
	b, a := got[0], got[1]
	if b.Status != 404 || b.Number != 2 || a.Status != 200 || a.Sent != 5 || !a.Done ||
		a.Header["Range"] != "bytes=0-" || a.Client != "somebody" || a.Path != "/a" {
		t.Errorf("got %+v and %+v", b, a)
	}
}

// Who has an answer finds its status in the log, also before the handler is done.
func TestAStatusIsKnownWithTheAnswer(t *testing.T) {
	log := record.New(record.Options{})
	release := make(chan struct{})
	server := httptest.NewServer(log.Wrap("a", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusPartialContent)
		_ = http.NewResponseController(w).Flush() // the client would miss it
		<-release
	})))
	defer server.Close()
	defer close(release)
	answer, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if r := log.Requests(); len(r) != 1 || r[0].Status != answer.StatusCode || r[0].Done {
		t.Errorf("the log has %+v for an answer of %s", r, answer.Status)
	}
}
