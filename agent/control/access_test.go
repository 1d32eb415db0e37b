package control

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// Users other than root may look and start a poll, but not run containers. Requests that
// are recorded with a name need a caller that the kernel identifies.
func TestOnlyRootChangesWorkloads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the user of the agent may do everything")
	}
	s := NewServer(struct{ Backend }{}, slog.New(slog.DiscardHandler))
	user := context.WithValue(t.Context(), connKey{}, &limitedConn{peer: Caller{PID: 1, UID: 1000}, known: true})
	asks := func(ctx context.Context, method, path string, want int) {
		t.Helper()
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, path, strings.NewReader(`{"colour":"red"}`)).WithContext(ctx)
		s.http.Handler.ServeHTTP(w, r)
		expect.Equal(t, w.Code, want, "%s was answered", path)
	}
	for _, path := range []string{"/v1/approve", "/v1/reject", "/v1/hold", "/v1/release", "/v1/rollback"} {
		asks(user, http.MethodPost, path, http.StatusBadRequest)
		asks(t.Context(), http.MethodPost, path, http.StatusForbidden)
	}
	for _, path := range []string{"/v1/compose/up", "/v1/compose/down", "/v1/compose/pull", "/v1/compose/exec", "/v1/exec", "/v1/prune", "/v1/accept-rollback"} {
		asks(user, http.MethodPost, path, http.StatusForbidden)
		asks(t.Context(), http.MethodPost, path, http.StatusForbidden)
	}
	asks(user, http.MethodGet, "/v1/backup", http.StatusForbidden)
	asks(t.Context(), http.MethodGet, "/v1/backup", http.StatusForbidden)
}

// However many connections several processes of root, or several users, hold together,
// the next caller still gets in; one that has too many is told so.
func TestSeveralCrowdsKeepNobodyOut(t *testing.T) {
	own := uint32(os.Geteuid()) // whose user may do everything
	for name, crowd := range map[string]func(n int) Caller{
		"processes of root": func(n int) Caller { return Caller{UID: own, PID: int32(n)} },
		"users":             func(n int) Caller { return Caller{UID: own + 1 + uint32(n), PID: 1} },
	} {
		t.Run(name, func(t *testing.T) {
			q := newQuota("connections", maxOwnConnections, maxOthersConnections, maxConnections)
			for n := range 8 {
				var err error
				for err == nil {
					_, err = q.enter(crowd(n), true)
				}
				if !errors.Is(err, ErrBusy) || n == 0 && !strings.Contains(err.Error(), "has 32 connections") {
					t.Errorf("crowd %d is told %v", n, err)
				}
			}
			for _, next := range []Caller{crowd(100), crowd(100), {UID: own, PID: 100}} {
				expect.Error(t, expect.ErrorOf(q.enter(next, true)), nil, "%v", next)
			}
		})
	}
}
