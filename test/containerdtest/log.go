package containerdtest

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
	"testing"
)

// Logger writes into the test's log.
func Logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(string(bytes.TrimRight(p, "\n")))
	return len(p), nil
}

// Series is a test with many subtests on one device. What the device logs is
// told by the subtest that is under way, so that the one that fails shows what
// happened to it and nothing else.
type Series struct {
	testing.TB // what is started once lasts as long as this test

	mu  sync.Mutex
	now testing.TB
}

// NewSeries makes a series of the subtests of t.
func NewSeries(t testing.TB) *Series { return &Series{TB: t, now: t} }

// Turn gives the log to a subtest until it ends.
func (s *Series) Turn(t testing.TB) {
	s.give(t)
	t.Cleanup(func() { s.give(s.TB) })
}

func (s *Series) give(t testing.TB) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = t
}

// Output writes into the log of the subtest that is under way.
func (s *Series) Output() io.Writer { return s }

func (s *Series) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now.Output().Write(p)
}

// Log logs in the subtest that is under way.
func (s *Series) Log(args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Log(args...)
}
