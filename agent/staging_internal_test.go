package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// A download that makes no progress for some seconds gives its slot to who waits for
// one, and such downloads altogether take a part of the slots only.
func TestSlowDownloadsGiveTheirSlotsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newStaging()
		reports := func(r *round, why string, waits bool) {
			r.note(runtime.Progress{Object: "image", Done: 1, Total: 2, Slow: why, Waits: waits})
		}
		begin := func(owner, kind string) *round {
			r := newRound(t.Context(), newWorker(owner), nil)
			r.slot = l.Try(limit.Key{Party: owner, Kind: kind}, r.preempted)
			expect.Require(t, r.slot != nil, "%s gets no slot", owner)
			return r
		}
		wait := func(kind string) (granted chan *limit.Slot) {
			granted = make(chan *limit.Slot, 1)
			go func() {
				if slot, err := l.Acquire(t.Context(), limit.Key{Party: "waits", Kind: kind}, nil, nil); err == nil {
					granted <- slot
				}
			}()
			return granted
		}
		passes := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		a, b, c, d := begin("a", downloading), begin("b", downloading), begin("c", downloading), begin("d", downloading)
		next := wait(downloading)
		reports(b, "41 bytes a minute", false)
		passes(yieldAfter - time.Second)
		expect.Equal(t, b.ctx.Err(), nil, "end of what was slow for a moment")
		passes(time.Second)
		expect.Equal(t, []bool{a.ctx.Err() != nil, b.ctx.Err() != nil}, []bool{false, true}, "the slow one is ended, and no other")
		reports(b, "", false) // its work ends
		expect.Equal(t, b.wasSlow(), "41 bytes a minute", "why it was slow")
		b.release()
		passes(0)
		(<-next).Release()

		// What is known to be slow gets a part of the slots, and another slow one waits for long.
		b = begin("b", slow)
		a.release()
		a = begin("a", slow)
		d.release()
		next = wait(slow)
		reports(a, "2 bytes a minute", false)
		passes(slowTurn - time.Second)
		expect.OK(t, a.ctx.Err()) // what is slow as well does not get the slot at once
		expect.Equal(t, len(next), 0, "slots beyond the part of what is slow")
		passes(time.Second)
		expect.Equal(t, []bool{a.ctx.Err() != nil, b.ctx.Err() != nil}, []bool{true, false}, "the one that had its turn is ended")
		a.release()
		passes(0)
		(<-next).Release()

		// What waits for others is not slow itself.
		begin("d", downloading)
		begin("a", downloading)
		next = wait(downloading)
		reports(c, "waiting for a download slot", true)
		passes(yieldAfter)
		expect.Equal(t, c.ctx.Err() != nil, true, "it is ended")
		expect.Equal(t, c.wasSlow(), "", "why it was slow")
		c.release()
		passes(0)
		expect.Equal(t, len(next), 1, "slots for who waits")
	})
}

func TestDownloadsAreKeptForWhatIsStillToBeStaged(t *testing.T) {
	for name, test := range map[string]struct {
		d    store.Deployment
		want bool
	}{
		"it waits for its registry":     {store.Deployment{Phase: string(Fetched)}, true},
		"it does not fit for now":       {store.Deployment{Phase: string(Failed), Fault: &store.Fault{Code: codeStorageFull}}, true},
		"it can never be staged":        {store.Deployment{Phase: string(Failed), Fault: &store.Fault{Code: codeInvalidPackage}}, false},
		"it is staged, and cannot work": {store.Deployment{Phase: string(Failed), Fault: &store.Fault{Code: codeExited}, Desired: store.Revision{Staged: []store.Staged{{}}}}, false},
		"it runs":                       {store.Deployment{Phase: string(Active)}, false},
		"it goes":                       {store.Deployment{Phase: string(Removing)}, false},
	} {
		t.Run(name, func(t *testing.T) { expect.Equal(t, isFetching(&test.d), test.want, "fetching") })
	}
}
