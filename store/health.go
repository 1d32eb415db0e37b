package store

import (
	"fmt"
	"time"
)

// Health is the state of a Store since it was opened. Asking costs no write.
type Health struct {
	Size    int64 // bytes of the database that are in use
	Commits int64 // transactions
	// Last is when a transaction was last tried; zero: never.
	Last time.Time
	// Err is why the last one failed; nil if it did not.
	Err error
}

// Health returns the state of the store.
func (s *Store) Health() (h Health) {
	if last := s.last.Load(); last != nil {
		h = *last
	}
	h.Size, h.Commits = s.used(), s.Writes()
	return h
}

func (s *Store) note(verb string, err error) {
	if err != nil {
		err = fmt.Errorf("cannot commit %q: %w", verb, err)
	}
	s.last.Store(&Health{Last: time.Now(), Err: err})
}
