package image

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/runtime/registry"
)

const (
	// DefaultMinRate is how many bytes a download has to bring in a minute to keep its slot while others wait: a quarter
	// of what GPRS carries.
	DefaultMinRate = 16 << 10

	rateWindow = time.Minute
	slowMemory = 10 // windows for which a registry is known to be slow
)

// once lets one of a kind be done at a time.
func once() limit.Bound {
	return limit.Bound{Most: 1, Counts: func(held, wanted limit.Key) bool { return held.Kind != "" && held.Kind == wanted.Kind }}
}

// newSlots bounds the downloads. A registry has a number of slots, and all registries together one more, so that one which
// holds all of its own leaves one to others. What has a kind, such as a blob by its digest, comes once at a time.
func newSlots(perRegistry int, window time.Duration) *limit.Limiter {
	return limit.New(slowMemory*window, once(),
		limit.Bound{Most: perRegistry, Counts: func(held, wanted limit.Key) bool { return held.Party != "" && held.Party == wanted.Party }},
		limit.Bound{Most: perRegistry + 1, Counts: func(held, wanted limit.Key) bool { return held.Party != "" && wanted.Party != "" }},
	)
}

// sameContent is why a download waits that needs no slot.
const sameContent = "waiting for another download of the same content"

var errSlotGiven = errors.New("its download slot was given to another download")

// receiver does what depends on a host alone, and counts the bytes that come of it.
type receiver func(receive func(ctx context.Context, came *atomic.Int64) error) error

// transfer downloads something that has a key; "": nobody else downloads it. do has the receiver do its part that depends on
// the host: the time of what this device does itself does not count. Each time the slot is given to others, do is called
// again later: it goes on where it was.
func (h host) transfer(ctx context.Context, key string, run *run, do func(context.Context, receiver) error) error {
	defer run.end()
	for {
		if err := h.attempt(ctx, key, run, do); !errors.Is(err, errSlotGiven) {
			return err
		}
	}
}

// attempt is transfer for as long as the slot is kept. It is broken off when nothing comes, and with less than the floor
// when somebody else waits for the slot, or when other hosts may be faster.
func (h host) attempt(ctx context.Context, key string, run *run, do func(context.Context, receiver) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wanted := limit.Key{Kind: key}
	why := sameContent
	if h.network {
		wanted.Party = h.name
		why = "waiting for a download slot: registry " + h.name
	}
	slot, err := h.images.slots.Acquire(ctx, wanted, func() { cancel(errSlotGiven) }, func(slow bool) { run.note(why, !slow) })
	if err != nil {
		return err
	}
	defer slot.Release()
	run.note("", false)
	told := func(perMinute int64, slow bool) {
		if !slow {
			run.note("", false)
			return
		}
		why := fmt.Errorf("registry %s sends %d bytes a minute, less than the minimum of %d", h.name, perMinute, h.images.rate.Floor)
		run.note(why.Error(), false)
		if h.others {
			cancel(remote{why})
		}
	}
	err = do(ctx, func(receive func(context.Context, *atomic.Int64) error) error {
		var came atomic.Int64
		if !h.network {
			return receive(ctx, &came)
		}
		watching, done := context.WithCancel(ctx)
		var watch sync.WaitGroup
		watch.Go(func() {
			if err := h.images.rate.Watch(watching, slot, &came, told); err != nil {
				cancel(remote{fmt.Errorf("registry %s: %w", h.name, err)})
			}
		})
		err := receive(registry.WithCounter(ctx, &came), &came)
		done()
		watch.Wait()
		slot.Spare(false)
		run.note("", false)
		return err
	})
	if cause := context.Cause(ctx); err != nil && (errors.Is(cause, errSlotGiven) || errors.As(cause, new(remote))) {
		return cause
	}
	return err
}
