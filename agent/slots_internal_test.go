package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestSlotsAreGrantedInOrder(t *testing.T) {
	s := &slots{busy: 1, begun: 3}
	a, b, c := s.request("a"), s.request("b"), s.request("c")
	if !a.holds() || b.holds() || c.holds() {
		t.Fatal("not the first alone")
	}
	if owners := c.waitsFor(); !slices.Equal(owners, []string{"a"}) {
		t.Errorf("c waits for %v", owners)
	}
	a.yield()
	if !b.holds() || c.holds() {
		t.Fatal("the slot that was yielded did not go to the next in line")
	}
	b.yield()
	d := s.request("d")
	c.yield()
	if d.holds() {
		t.Error("more have begun than may")
	}
	if owners := d.waitsFor(); !slices.Equal(owners, []string{"a", "b", "c"}) {
		t.Errorf("d waits for %v", owners)
	}
	c.release()
	c.release()
	if !d.holds() {
		t.Error("what was released was not granted")
	}
}

// A slot whose work makes no progress for some seconds goes to who waits for one, and
// such work altogether takes a part of the slots only.
func TestSlowWorkGivesItsSlotAway(t *testing.T) { synctest.Test(t, slowWorkGivesItsSlotAway) }

func slowWorkGivesItsSlotAway(t *testing.T) {
	passes := func(d time.Duration) {
		time.Sleep(d)
		synctest.Wait()
	}
	s := &slots{begun: 3, keyBegun: 2}
	var mu sync.Mutex
	counts := map[string]int{}
	ended := func(owner string) int { // "": of all
		mu.Lock()
		defer mu.Unlock()
		if owner == "" {
			return len(counts)
		}
		return counts[owner]
	}
	request := func(owner string, keys ...string) *slot {
		slot := s.request(owner, keys...)
		slot.preemptible(func() {
			mu.Lock()
			defer mu.Unlock()
			counts[owner]++
		})
		return slot
	}
	a, b, c := request("a"), request("b"), request("c")
	if d := s.try("d", nil); d != nil {
		t.Error("one more has begun than may")
	}
	d, e := request("d"), request("e")
	if ended("") > 0 {
		t.Fatalf("%v are ended that get on", counts)
	}
	b.slows("41 bytes a minute", false)
	passes(yieldAfter - time.Second)
	if ended("") > 0 {
		t.Fatalf("%v are ended that were slow for a moment", counts)
	}
	passes(time.Second)
	if ended("") != 1 || ended("b") != 1 {
		t.Fatalf("ended are %v", counts)
	}
	a.slows("2 bytes a minute", false)
	a.slows("3 bytes a minute", false)
	passes(yieldAfter)
	if ended("") != 2 || ended("a") != 1 {
		t.Fatalf("ended are %v", counts)
	}
	b.slows("", false) // its work ends
	if why := b.wasSlow(); why != "41 bytes a minute" {
		t.Errorf("it was slow because of %q", why)
	}
	b.release()
	if !d.holds() || e.holds() {
		t.Error("the slot did not go to the first in line")
	}
	a.release()
	if !e.holds() {
		t.Error("the second slot did not go to the next in line")
	}
	again := request("a", slowKey)
	c.release()
	if !again.holds() {
		t.Fatal("what is slow gets no slot that is free")
	}
	d.release()
	e.release()
	other, third, good := request("b", slowKey), request("x", slowKey), request("good")
	if !other.holds() || third.holds() || !good.holds() {
		t.Error("what is slow takes more than its part, or does not get it")
	}
	again.slows("41 bytes a minute", false)
	passes(yieldAfter)
	if ended("a") != 1 {
		t.Error("what is slow gives its slot at once to what is slow as well")
	}
	passes(slowTurn)
	if ended("a") != 2 {
		t.Error("what is slow keeps its slot for ever")
	}
	again.release()
	third.release()
	good.slows("waiting for a download slot", true)
	f, g := request("f"), request("g")
	passes(yieldAfter)
	if why := good.wasSlow(); !f.holds() || g.holds() || ended("good") != 1 || why != "" {
		t.Errorf("what waits for others gave its slot %d times, and is slow because of %q", ended("good"), why)
	}
}

func TestSlotsAreShutWhenNothingGetsOn(t *testing.T) {
	s := &slots{begun: 3}
	a := s.request("a")
	a.preemptible(func() { go a.release() })
	if _, ok := s.shut(t.Context()); ok {
		t.Fatal("they are shut while something gets on")
	}
	a.slows("41 bytes a minute", false)
	open, ok := s.shut(t.Context())
	if !ok {
		t.Fatal("they are not shut though nothing gets on")
	}
	b := s.request("b")
	if b.holds() || s.try("c", nil) != nil {
		t.Error("a slot is granted while they are shut")
	}
	open()
	if !b.holds() {
		t.Error("none is granted when they are open again")
	}
}

func TestASlotThatNobodyWaitsForAnyMoreGoesToTheNext(t *testing.T) {
	s := &slots{busy: 1}
	a, b, c := s.request("a"), s.request("b"), s.request("c")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	b.release()
	a.release()
	if err := c.wait(ctx); err != nil {
		t.Error("one that is free is refused", err)
	}
	c.release()
	if len(s.held)+len(s.line) > 0 {
		t.Error("something is left")
	}
}
