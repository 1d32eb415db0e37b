package limit_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/test/expect"
)

const window = time.Minute

// atOnce lets a party do one thing at a time, and all of them so many; and one of each kind is done.
func atOnce(most int) *limit.Limiter {
	return limit.New(10*window,
		limit.Bound{Most: 1, Counts: func(held, wanted limit.Key) bool { return held.Kind != "" && held.Kind == wanted.Kind }},
		limit.Bound{Most: 1, Counts: func(held, wanted limit.Key) bool { return held.Party == wanted.Party }},
		limit.Bound{Most: most, Counts: func(limit.Key, limit.Key) bool { return true }},
	)
}

// request asks for a slot of a party, and waits until it has come or is waited for.
func request(t *testing.T, l *limit.Limiter, party string, preempt func()) (granted chan *limit.Slot) {
	granted = make(chan *limit.Slot, 1)
	go func() { // ends with the test at the latest
		if s, err := l.Acquire(t.Context(), limit.Key{Party: party}, preempt, nil); err == nil {
			granted <- s
		}
	}()
	synctest.Wait()
	return granted
}

func holds(granted chan *limit.Slot) bool {
	synctest.Wait()
	return len(granted) > 0
}

// Who waits comes in order, but for those who are slow or cannot be served; and what is slow is ended for another party.
func TestNoPartyHoldsUpAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := atOnce(2)
		ended := 0
		a, b := request(t, l, "a", func() { ended++ }), request(t, l, "b", nil)
		again, c, d := request(t, l, "a", nil), request(t, l, "c", nil), request(t, l, "d", nil)
		expect.Require(t, holds(a) && holds(b) && !holds(again) && !holds(c) && !holds(d), "more are granted than may be, or fewer")
		slow := <-a
		slow.Slow(true)
		expect.Require(t, ended <= 0, "ended without need")
		slow.Spare(true)
		slow.Spare(true)
		expect.Equal(t, ended, 1, "times that it ended for others")
		slow.Release()
		expect.True(t, !holds(again) && holds(c) && !holds(d), "the slot did not go to the first in line who is not slow")
		(<-c).Release()
		expect.True(t, !holds(again) && holds(d), "a party that was slow does not come after the others")
		(<-d).Release()
		expect.Equal(t, holds(again), true, "a party that was slow comes again")
	})
}

func TestWhoGivesUpWaitingHoldsUpNobody(t *testing.T) {
	l := atOnce(2)
	held := expect.Value(l.Acquire(t.Context(), limit.Key{Party: "a", Kind: "blob"}, nil, nil))(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := l.Acquire(ctx, limit.Key{Party: "b", Kind: "blob"}, nil, func(slow bool) {
		expect.Equal(t, slow, false, "somebody was slow")
		cancel()
	})
	expect.Error(t, err, context.Canceled, "one of a kind is done twice")
	held.Release()
	expect.Error(t, expect.ErrorOf(l.Acquire(ctx, limit.Key{Party: "b", Kind: "blob"}, nil, nil)), nil, "what is free is refused")
}

// Slots are shut once all of them are spare, also where that is for nobody in line.
func TestSlotsAreShutWhenAllAreSpare(t *testing.T) {
	l := atOnce(2)
	var s *limit.Slot
	s = l.Try(limit.Key{Party: "a"}, func() { go s.Release() })
	expect.Equal(t, l.Ahead(limit.Key{Party: "a"}), []string{"a"}, "ahead of another one of the party")
	if _, ok := l.Shut(t.Context()); ok {
		t.Fatal("they are shut though one is not spare")
	}
	s.Spare(true, "")
	open, ok := l.Shut(t.Context())
	expect.Require(t, ok && l.Try(limit.Key{Party: "b"}, nil) == nil, "they are not shut")
	open()
	expect.Equal(t, l.Try(limit.Key{Party: "b"}, nil) != nil, true, "one is granted when they are open again")
}

// watch has come what comes after each while, for so many windows or until the slot is given away.
func watch(t *testing.T, s *limit.Slot, given chan struct{}, windows int, comes func(passed time.Duration) int64) (slow bool, err error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var came atomic.Int64
	ended := make(chan error, 1)
	go func() {
		ended <- limit.Rate{Floor: 16 << 10, Window: window}.Watch(ctx, s, &came, func(_ int64, is bool) { slow = slow || is })
	}()
	for begun := time.Now(); time.Since(begun) < time.Duration(windows)*window; {
		came.Store(comes(time.Since(begun)))
		select {
		case <-time.After(window / 20):
		case err := <-ended:
			return slow, err
		case <-given:
			return slow, errGiven
		}
	}
	cancel()
	return slow, <-ended
}

var errGiven = errors.New("it was given away")

// A fast download is not mistaken for a slow one: 200 GB in a window overflow an integer. One above the floor keeps its
// slot for a time, and not for ever while another party waits. One of which nothing comes ends.
func TestWorkIsWatched(t *testing.T) {
	for name, c := range map[string]struct {
		comes int64 // in a window
		other string
		slow  bool
		want  error
	}{
		"fast":                           {200e9, "other", false, nil},
		"steady, and nobody waits":       {1 << 20, "", false, nil},
		"steady, and another waits":      {1 << 20, "other", false, errGiven},
		"steady, and one's own waits":    {1 << 20, "party", false, nil},
		"below the floor, nobody waits":  {1 << 10, "", true, nil},
		"below the floor, another waits": {1 << 10, "other", true, errGiven},
		"nothing":                        {0, "", true, limit.ErrSilent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, given := atOnce(1), make(chan struct{})
				s := <-request(t, l, "party", func() { close(given) })
				if c.other != "" {
					request(t, l, c.other, nil)
				}
				begun := time.Now()
				slow, err := watch(t, s, given, 30, func(passed time.Duration) int64 {
					return int64(float64(c.comes) * passed.Minutes())
				})
				expect.True(t, errors.Is(err, c.want) && slow == c.slow, "%v, slow: %t", err, slow)
				if took := time.Since(begun); errors.Is(err, errGiven) && !slow && took < 10*window {
					t.Errorf("given away after %s", took)
				}
				s.Release()
			})
		})
	}
}
