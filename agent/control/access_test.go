package control

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// What is written down with a name needs one: who may open the socket, and is
// known.
func TestAnswersAreOfSomebody(t *testing.T) {
	s := NewServer(struct{ Backend }{}, slog.New(slog.DiscardHandler))
	for _, path := range []string{"/v1/approve", "/v1/reject", "/v1/hold", "/v1/release", "/v1/rollback"} {
		for want, ctx := range map[int]context.Context{
			http.StatusBadRequest: context.WithValue(t.Context(), peerKey{}, Caller{PID: 1, UID: 1000}),
			http.StatusForbidden:  t.Context(),
		} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(`{"colour":"red"}`)).WithContext(ctx)
			s.http.Handler.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s was answered %d, want %d", path, w.Code, want)
			}
		}
	}
}

// Who is not root may look and ask for a poll, and may not run containers.
func TestOnlyRootChangesWorkloads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the user of the agent may do everything")
	}
	s := NewServer(struct{ Backend }{}, slog.New(slog.DiscardHandler))
	for _, path := range []string{"/v1/compose/up", "/v1/compose/down", "/v1/compose/pull", "/v1/compose/exec", "/v1/exec", "/v1/prune", "/v1/accept-rollback", "/v1/backup"} {
		method := http.MethodPost
		if path == "/v1/backup" {
			method = http.MethodGet
		}
		for name, ctx := range map[string]context.Context{
			"another user":   context.WithValue(t.Context(), peerKey{}, Caller{PID: 1, UID: 1000}),
			"no credentials": t.Context(),
		} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(method, path, strings.NewReader(`{"project":"p"}`)).WithContext(ctx)
			s.http.Handler.ServeHTTP(w, r)
			if w.Code != http.StatusForbidden {
				t.Errorf("%s: %s was answered %d, want 403", path, name, w.Code)
			}
		}
	}
}
