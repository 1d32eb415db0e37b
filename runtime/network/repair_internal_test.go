package network

import (
	"log/slog"
	"os"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// What happens between a look and its end is not taken for what the look saw.
func TestWhatIsHeardDuringALookAsksForAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	n := expect.Value(New(Options{RunDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}))(t)
	s := Sandbox{Project: "shop", Service: "web", Number: 1, Host: true}
	check(t, n.EnsureSandbox(t.Context(), s, nil))
	defer func() {
		expect.OK(t, n.RemoveSandbox(t.Context(), s))
	}()
	inOrder := func(news func()) bool {
		r := repairs{n: n, lost: func() {}, attempts: make(map[string]attempt)}
		r.watch = func(string) error { news(); return nil }
		expect.Equal(t, r.look(), 0, "wait for the next look")
		return n.good.Load() == n.heard.Load()
	}
	expect.Equal(t, inOrder(func() {}), true, "everything is in order")
	expect.Equal(t, inOrder(func() { n.tell(n.news) }), false, "in order after what was heard during the look")
	expect.Equal(t, len(n.news), 1, "looks asked for")
}
