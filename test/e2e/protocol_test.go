package e2e

import (
	"os"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

// sync polls the WFM now.
func (r *rig) sync() error { return r.Control().Sync(r.t.Context()) }

// synced polls until that works: the agent may just have been held back.
func (r *rig) synced() {
	r.t.Helper()
	plant.Require(r.t, "the WFM can be polled", r.sync)
}

// quiet waits until everything was told to the WFM.
func (r *rig) quiet() {
	r.t.Helper()
	check(r.t, r.Quiet(r.t.Context()))
}

// untouched fails the test if services are not the very same as before.
func (r *rig) untouched(id string, before map[string]control.Service) {
	r.t.Helper()
	after := r.services(id)
	expect.Equal(r.t, len(after), len(before), "services run")
	for name, was := range before {
		now := after[name]
		if !sameTask(was, now) || was.Started == nil || now.Started == nil || was.Started.Sub(*now.Started).Abs() > time.Second {
			r.t.Errorf("service %s was touched: it is %s with process %d since %v, was %s with %d since %v",
				name, now.Container, now.Pid, now.Started, was.Container, was.Pid, was.Started)
		}
	}
}

// logged gives the lines of the agent's log, from a length of it on, that hold
// all words.
func (r *rig) logged(from int, words ...string) []string {
	r.t.Helper()
	text := expect.Value(os.ReadFile(r.LogFile()))(r.t)
	var lines []string
	for line := range strings.Lines(string(text[min(from, len(text)):])) {
		if containsAll(line, words...) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// logLength is where the agent's log ends now.
func (r *rig) logLength() int {
	r.t.Helper()
	info := expect.Value(os.Stat(r.LogFile()))(r.t)
	return int(info.Size())
}
