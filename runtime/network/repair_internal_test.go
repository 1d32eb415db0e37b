package network

import (
	"log/slog"
	"os"
	"testing"
)

// What happens between a look and its end is not taken for what the look saw.
func TestWhatIsHeardDuringALookAsksForAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	n, err := New(Options{RunDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	s := Sandbox{Project: "shop", Service: "web", Number: 1, Host: true}
	check(t, n.EnsureSandbox(t.Context(), s, nil))
	defer func() {
		if err := n.RemoveSandbox(t.Context(), s); err != nil {
			t.Error(err)
		}
	}()
	inOrder := func(news func()) bool {
		r := repairs{n: n, lost: func() {}, attempts: make(map[string]attempt)}
		r.watch = func(string) error { news(); return nil }
		if again := r.look(); again != 0 {
			t.Errorf("there is something to do in %v", again)
		}
		return n.good.Load() == n.heard.Load()
	}
	if !inOrder(func() {}) {
		t.Error("everything is in order, and it is not said")
	}
	if inOrder(func() { n.tell(n.news) }) {
		t.Error("what was heard during the look is forgotten")
	}
	if len(n.news) != 1 {
		t.Error("nobody looks again")
	}
}
