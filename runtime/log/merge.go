package log

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options select the part of a log to read.
type Options struct {
	Tail   int       // the last lines of each; 0: all; negative: only new ones
	Since  time.Time // from then on; zero: all
	Until  time.Time // up to then; zero: all. With Follow, Run ends then
	Follow bool      // continue with new lines
}

// lookAgain is the number of entries after which idle sources are checked meanwhile.
const lookAgain = 256

// Merge merges the output of several logs in the order of time. It needs the goroutine of Run,
// another one to follow, and a few pages per log.
type Merge struct {
	o       Options
	watcher watcher

	mu     sync.Mutex
	added  []Source // not yet taken over
	sealed bool

	sources []*source // of Run alone
}

// NewMerge makes a Merge without logs.
func NewMerge(o Options) *Merge {
	return &Merge{o: o, watcher: watcher{poked: make(chan struct{}, 1)}}
}

// Add adds a log, from any goroutine: before Run, from the lines that Tail asks for; later, from
// its start. Repeating it has no effect. A missing log is waited for until Seal.
func (m *Merge) Add(s Source) {
	m.mu.Lock()
	m.added = append(m.added, s)
	m.mu.Unlock()
	m.watcher.poke()
}

// Seal says that no more logs will be added: Run ends once all are removed.
func (m *Merge) Seal() {
	m.mu.Lock()
	m.sealed = true
	m.mu.Unlock()
	m.watcher.poke()
}

// Run calls each for every entry, oldest first. Without Follow it ends when all is read; with
// Follow, when ctx ends, which is no error, and after Seal when all logs are removed. It can
// be called once.
//
// A reader slower than the rotations misses what they dropped, and goes on with the oldest
// remaining line.
func (m *Merge) Run(ctx context.Context, each func(Entry) error) (err error) {
	if m.o.Follow {
		m.watcher.open()
	}
	defer func() {
		for _, s := range m.sources {
			s.close()
		}
		m.watcher.close()
		if err != nil {
			err = fmt.Errorf("cannot read logs: %w", err)
		}
	}()
	waiting := ctx
	if !m.o.Until.IsZero() {
		var cancel context.CancelFunc
		waiting, cancel = context.WithDeadline(ctx, m.o.Until)
		defer cancel()
	}
	tail := m.o.Tail
	for {
		sealed, err := m.takeOver(tail)
		if err != nil {
			return err
		}
		tail = 0 // later logs are read from the start
		last := waiting.Err() != nil || !m.o.Follow
		if err := m.deliver(ctx, each); err != nil || ctx.Err() != nil {
			return err
		}
		if last {
			return m.finish(each)
		}
		again, err := m.dropRemoved(each, sealed)
		if err != nil || sealed && len(m.sources) == 0 {
			return err
		}
		if !again {
			m.watcher.wait(waiting)
		}
	}
}

// takeOver starts reading the added logs, and checks all of them.
func (m *Merge) takeOver(tail int) (sealed bool, err error) {
	m.mu.Lock()
	added, sealed := m.added, m.sealed
	m.added = nil
	m.mu.Unlock()
	for _, a := range added {
		if i := slices.IndexFunc(m.sources, func(s *source) bool { return s.Path == a.Path }); i >= 0 {
			// It may be about to end, to be followed by a new one.
			m.sources[i].again = true
			continue
		}
		m.sources = append(m.sources, &source{Source: a})
	}
	for _, s := range m.sources {
		// For what happens next. IN_ATTRIB: a removal changes the number of links.
		m.watcher.add(filepath.Dir(s.Path), unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR)
		m.watcher.add(s.Path, unix.IN_MODIFY|unix.IN_ATTRIB|unix.IN_MOVE_SELF)
		if s.file == nil {
			if err := s.open(tail); err != nil {
				return sealed, err
			}
		}
		s.dry = false
		s.gone = s.file != nil && s.file.removed()
	}
	return sealed, nil
}

func (m *Merge) deliver(ctx context.Context, each func(Entry) error) error {
	longest := max(4*maxText, min(maxJoined, maxHeld/max(1, len(m.sources))))
	for count := 1; ctx.Err() == nil; count++ {
		var next *source
		for _, s := range m.sources {
			if count%lookAgain == 0 {
				s.dry = false
			}
			if err := s.fill(m.o, longest); err != nil {
				return err
			}
			if s.has && (next == nil || s.head.Time.Before(next.head.Time)) {
				next = s
			}
		}
		if next == nil {
			return nil
		}
		next.has = false
		if err := each(next.head); err != nil {
			return err
		}
	}
	return nil
}

func (m *Merge) finish(each func(Entry) error) error {
	for _, s := range m.sources {
		if err := m.finishOne(s, each); err != nil {
			return err
		}
	}
	return nil
}

func (m *Merge) finishOne(s *source, each func(Entry) error) error {
	for s.finish(m.o) {
		s.has = false
		if err := each(s.head); err != nil {
			return err
		}
	}
	return nil
}

// dropRemoved drops logs that were removed before all their content was passed on, and after
// Seal those that are missing. again: a new log has taken the place of one, read it at once.
func (m *Merge) dropRemoved(each func(Entry) error, sealed bool) (again bool, err error) {
	kept := m.sources[:0]
	for _, s := range m.sources {
		switch {
		case s.gone:
			err := m.finishOne(s, each)
			s.close()
			if err != nil {
				return false, err
			}
			wanted := s.again
			*s = source{Source: s.Source}
			if err := s.open(0); err != nil {
				return false, err
			}
			if s.file == nil && !wanted {
				continue
			}
			again = true
		case s.file == nil && sealed:
			continue
		}
		kept = append(kept, s)
	}
	clear(m.sources[len(kept):])
	m.sources = kept
	return again, nil
}

// Read copies a log's text to w, oldest line first. With Follow it continues until ctx ends or
// the log is removed, which is no error. A missing log is fs.ErrNotExist.
func Read(ctx context.Context, path string, o Options, w io.Writer) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("cannot read log: %w", err)
	}
	m := NewMerge(o)
	m.Add(Source{Path: path})
	m.Seal()
	return m.Run(ctx, func(e Entry) error {
		_, err := w.Write(e.Text)
		return err
	})
}
