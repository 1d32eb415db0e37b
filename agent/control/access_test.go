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

// Who is not root may look and ask for a poll, and may not run containers.
func TestOnlyRootChangesWorkloads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the caller's own user may do everything")
	}
	s := NewServer(struct{ Backend }{}, slog.New(slog.DiscardHandler))
	for _, path := range []string{"/v1/compose/up", "/v1/compose/down", "/v1/compose/pull", "/v1/compose/exec", "/v1/exec", "/v1/prune", "/v1/accept-rollback"} {
		for name, ctx := range map[string]context.Context{
			"another user":   context.WithValue(t.Context(), peerKey{}, peer{pid: 1, uid: 1000}),
			"no credentials": t.Context(),
		} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(`{"project":"p"}`)).WithContext(ctx)
			s.http.Handler.ServeHTTP(w, r)
			if w.Code != http.StatusForbidden {
				t.Errorf("%s: %s was answered %d, want 403", path, name, w.Code)
			}
		}
	}
}
