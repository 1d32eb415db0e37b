package image

import (
	"context"
	"errors"
	"fmt"
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

// transfer downloads something that has a key; "": nobody else downloads it. Each time the slot is given to others, do is
// called again later: it goes on where it was.
func (h host) transfer(ctx context.Context, key string, run *run, do func(context.Context, *limit.Flow) error) error {
	defer run.end()
	for {
		if err := h.attempt(ctx, key, run, do); !errors.Is(err, errSlotGiven) {
			return err
		}
	}
}

// attempt is transfer for as long as the slot is kept. It is broken off when nothing comes, and with less than the floor
// when somebody else waits for the slot, or when other hosts may be faster.
func (h host) attempt(ctx context.Context, key string, run *run, do func(context.Context, *limit.Flow) error) error {
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
	var flow limit.Flow
	if !h.network {
		return do(ctx, &flow)
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		err := h.images.rate.Watch(ctx, slot, &flow, func(perMinute int64, slow bool) {
			if !slow {
				run.note("", false)
				return
			}
			why := fmt.Errorf("registry %s sends %d bytes a minute, less than the minimum of %d", h.name, perMinute, h.images.rate.Floor)
			run.note(why.Error(), false)
			if h.others {
				cancel(remote{why})
			}
		})
		if err != nil {
			cancel(remote{fmt.Errorf("registry %s: %w", h.name, err)})
		}
	}()
	err = do(registry.WithCounter(ctx, &flow.Came), &flow)
	cause := context.Cause(ctx)
	cancel(nil)
	<-watched
	if err != nil && (errors.Is(cause, errSlotGiven) || errors.As(cause, new(remote))) {
		return cause
	}
	return err
}
