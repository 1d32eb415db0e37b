package agent

import (
	"fmt"
	"time"

	"github.com/shirou/gopsutil/v4/disk"

	"github.com/margolite/margolite/agent/control"
)

// manyStarts is how many starts in a day are too many: something ends the agent.
const manyStarts = 5

// Alive fails when a loop of the agent is stuck. It takes each of the agent's locks for a moment
// and reads the store, so it hangs when one is never released. It is cheap and writes nothing.
func (a *Agent) Alive() error {
	a.reconciler.worker("")
	a.poller.status()
	_, cancel := a.hub.subscribe()
	cancel()
	a.ledger.mu.Lock()
	//lint:ignore SA2001 only to know that it can be had
	a.ledger.mu.Unlock()
	if _, err := a.o.Store.CountReports(); err != nil {
		return fmt.Errorf("cannot read the store: %w", err)
	}
	for _, l := range a.loops.list() {
		if l.Stuck {
			return fmt.Errorf("the %s has made no progress for %v", l.Name, time.Duration(l.Busy*float64(time.Second)).Round(time.Second))
		}
	}
	return nil
}

// selfCheck describes the agent's own state. runtimeError: why the runtime cannot be asked.
func (a *Agent) selfCheck(runtimeError string) *control.SelfCheck {
	h := a.o.Store.Health()
	c := &control.SelfCheck{
		Store: control.StoreCheck{Size: h.Size, Commits: h.Commits, LastWrite: h.Last.UTC()},
		Loops: a.loops.list(),
	}
	add := func(mend, format string, args ...any) {
		c.Problems = append(c.Problems, control.Advice{Text: fmt.Sprintf(format, args...), Mend: mend})
	}
	if h.Err != nil {
		c.Store.LastError = h.Err.Error()
		add("check the storage medium of state.dir", "the agent cannot write its records: %v", h.Err)
	}
	for _, l := range c.Loops {
		if l.Stuck {
			add("the watchdog restarts the agent", "the %s is stuck", l.Name)
		}
	}
	c.ClockWrong = a.o.ClockWrong() // the warnings about the identity tell more
	if fs, err := disk.Usage(a.o.StateDir); err == nil {
		c.Free = int64(fs.Free)
		if c.Free < a.o.Reserve {
			add("free some space, for example with `margolite prune`", "%d bytes are free on the file system of %s, less than state.reserve", c.Free, a.o.StateDir)
		}
	}
	c.Panics, c.LastPanic = a.mistakes.seen()
	if c.LastPanic == nil {
		c.LastPanic = a.o.Crash
	}
	if c.Starts = a.o.Starts; c.Starts >= manyStarts {
		add("read its log", "the agent was started %d times within a day", c.Starts)
	}
	c.OK = len(c.Problems) == 0 && runtimeError == "" && !c.ClockWrong
	return c
}
