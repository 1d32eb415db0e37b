package store

import (
	"fmt"
	"sync"
	"time"
)

// Health is how a Store fares since it was opened. Asking costs no write.
type Health struct {
	Size    int64 // bytes of the database that are in use
	Commits int64 // transactions
	// Last is when a transaction was last tried; zero: none was.
	Last time.Time
	// Err is why the last one failed; nil: it did not.
	Err error
}

// Health tells how the store fares.
func (s *Store) Health() Health {
	h := Health{Size: s.used(), Commits: s.Writes()}
	s.last.mu.Lock()
	defer s.last.mu.Unlock()
	h.Last, h.Err = s.last.at, s.last.err
	return h
}

// lastWrite is what became of the last transaction.
type lastWrite struct {
	mu  sync.Mutex
	at  time.Time
	err error
}

func (l *lastWrite) note(verb string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at, l.err = time.Now(), nil
	if err != nil {
		l.err = fmt.Errorf("cannot commit %q: %w", verb, err)
	}
}
