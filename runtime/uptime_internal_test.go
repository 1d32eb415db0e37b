package runtime

import (
	"os"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
)

func TestStartOfThisProcess(t *testing.T) {
	if up := time.Since(startOf(os.Getpid())); up < 0 || up > time.Hour {
		t.Errorf("this process runs for %s", up)
	}
	expect.Equal(t, startOf(1<<30), time.Time{}, "start of a process that is not there")
}

func TestBackoff(t *testing.T) {
	now := time.Now()
	var h history
	h.ends(now, compose.Restart{}, 1)
	if !h.due.Equal(now) {
		t.Errorf("what never ran before is due in %s", h.due.Sub(now))
	}

	var last time.Duration
	for n := range 20 {
		h.starts(now)
		now = now.Add(time.Second)
		h.ends(now, compose.Restart{}, 1)
		wait := h.due.Sub(now)
		if wait < last || wait > maxDelay || (n == 0) != (wait == 0) { // the first restart comes at once
			t.Errorf("waits %s after %s", wait, last)
		}
		h.ends(now.Add(time.Hour), compose.Restart{}, 1) // the same end, seen again
		expect.Equal(t, h.due.Sub(now), wait, "delay after one end")
		last = wait
	}
	expect.Equal(t, last, maxDelay, "delay in the end")

	h.starts(now)
	h.runs(7, now)
	h.ends(now.Add(ranWell), compose.Restart{}, 0)
	if wait := h.due.Sub(now.Add(ranWell)); wait != 0 || h.failures != 1 {
		t.Errorf("after it ran well it waits %s, with %d failures", wait, h.failures)
	}

	policy := compose.Restart{Delay: 3 * time.Second, Window: time.Minute}
	for failures := 2; failures < 5; failures++ {
		h.starts(now)
		h.ends(now.Add(ranWell), policy, 0)
		if wait := h.due.Sub(now.Add(ranWell)); wait < policy.Delay || h.failures != failures {
			t.Errorf("within its window it waits %s, with %d failures", wait, h.failures)
		}
	}
	h.starts(now)
	h.ends(now.Add(policy.Window), policy, 0)
	if wait := h.due.Sub(now.Add(policy.Window)); wait != policy.Delay || h.failures != 1 {
		t.Errorf("after its window it waits %s, with %d failures", wait, h.failures)
	}
	if low, high := delay(3, 0), delay(3, 1); low >= high || low < high/2 {
		t.Errorf("spread from %s to %s", low, high)
	}
}
