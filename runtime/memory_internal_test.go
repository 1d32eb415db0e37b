package runtime

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Locks exist only while they are used.
func TestLocksGoWithTheirUsers(t *testing.T) {
	var l locks
	for n := range 100 {
		project := fmt.Sprint("p", n)
		unlock, err := l.lock(t.Context(), project)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := l.tryLock(project); ok {
			t.Fatal("a lock was given twice")
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.lock(ended, project); err == nil {
			t.Fatal("a lock was given twice")
		}
		waiting := make(chan func())
		go func() {
			unlock, err := l.lock(t.Context(), project)
			if err != nil {
				t.Error(err)
			}
			waiting <- unlock
		}()
		for l.users(project) < 2 {
			time.Sleep(time.Millisecond)
		}
		unlock()
		(<-waiting)()
	}
	if len(l.used) > 0 {
		t.Errorf("%d locks are left", len(l.used))
	}
}

func (l *locks) users(project string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used[project].users
}

// An agenda that would name too much says that anything may have changed.
func TestAnAgendaIsBounded(t *testing.T) {
	a := newAgenda()
	a.addProject("p")
	a.addContainer("c")
	if i := a.take(); i.all || !i.projects["p"] || !i.containers["c"] || len(i.projects)+len(i.containers) != 2 {
		t.Errorf("it says %+v", i)
	}
	for n := range 2 * maxAgenda {
		a.addContainer(fmt.Sprint(n))
	}
	if i := a.take(); !i.all || len(i.containers) > 0 {
		t.Errorf("it names %d containers, all: %v", len(i.containers), i.all)
	}
	if i := a.take(); i.all {
		t.Error("it says the same twice")
	}
}

// Remembered is how many entries about projects an engine holds in memory.
func (e *Engine) Remembered() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := map[string]int{
		"claims": len(e.claims), "history": len(e.history), "held": len(e.held), "left": len(e.left), "tended": len(e.tended),
		"changed": len(e.changed), "waits": len(e.waits), "lastLoads": len(e.lastLoads),
	}
	for name, l := range map[string]*locks{"changing": &e.changing, "projects": &e.projects, "packages": &e.packages} {
		l.mu.Lock()
		n[name] = len(l.used)
		l.mu.Unlock()
	}
	return n
}
