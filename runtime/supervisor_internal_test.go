package runtime

import (
	"testing"
	"time"
)

// A look that failed is not repeated before its time because a project is due: the
// project stays due until a look succeeds.
func TestAFailedLookIsNotRepeatedAtOnce(t *testing.T) {
	now := time.Now()
	s := &supervisor{projects: map[string]*tended{"shop": {due: now.Add(-time.Minute)}}, retry: now.Add(time.Minute)}
	if next := s.next(); !next.Equal(s.retry) {
		t.Errorf("the next look is due at %s, want %s", next, s.retry)
	}
	s.retry = time.Time{}
	if next := s.next(); !next.Equal(now.Add(-time.Minute)) {
		t.Errorf("the next look is due at %s, want that of the project", next)
	}
}
