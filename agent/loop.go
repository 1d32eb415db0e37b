package agent

import (
	"sync/atomic"
	"time"

	"github.com/margolite/margolite/agent/control"
)

// loop watches a goroutine of the agent. While it works it reports progress now and then; without
// any for longer than most it is stuck. It may wait for work for however long.
type loop struct {
	name  string
	most  time.Duration
	begun time.Time    // of the agent; a clock that cannot be set
	since atomic.Int64 // last progress, since begun; 0: it waits
}

// works reports work or progress.
func (l *loop) works() { l.since.Store(max(int64(time.Since(l.begun)), 1)) }

func (l *loop) waits() { l.since.Store(0) }

// busy is the time since the last progress; 0 while it waits.
func (l *loop) busy() time.Duration {
	since := l.since.Load()
	if since == 0 {
		return 0
	}
	return max(time.Since(l.begun)-time.Duration(since), 1)
}

type loops struct {
	reconciler, poller, reporter, watcher loop
	runtime                               func() time.Duration // nil: not known
}

// newLoops sets generous bounds: a sync to the medium may take seconds. Waits for servers have
// their own.
func newLoops(runtime func() time.Duration) *loops {
	begun := time.Now()
	return &loops{
		reconciler: loop{name: "reconciler", most: 10 * time.Minute, begun: begun}, // to read all records
		poller:     loop{name: "poller", most: time.Hour, begun: begun},            // between two documents
		reporter:   loop{name: "reporter", most: 30 * time.Minute, begun: begun},   // between two reports
		watcher:    loop{name: "watcher", most: 10 * time.Minute, begun: begun},    // to look at the machine
		runtime:    runtime,
	}
}

func (l *loops) list() []control.Loop {
	var all []control.Loop
	add := func(name string, busy, most time.Duration) {
		all = append(all, control.Loop{Name: name, Busy: busy.Seconds(), Stuck: busy > most})
	}
	for _, one := range []*loop{&l.reconciler, &l.poller, &l.reporter, &l.watcher} {
		add(one.name, one.busy(), one.most)
	}
	if l.runtime != nil {
		add("runtime", l.runtime(), 10*time.Minute) // to list the containers
	}
	return all
}
