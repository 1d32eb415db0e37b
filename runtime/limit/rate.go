package limit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	// undisturbed is how many windows work keeps its slot if it is above the floor. After that, the
	// rate it needs while others wait doubles with each window, up to mostDoubled times.
	undisturbed = 10
	mostDoubled = 20
	silent      = 2 // windows without a byte
)

// ErrSilent says that no data arrived.
var ErrSilent = errors.New("nothing was received")

// Rate is the speed that work must have.
type Rate struct {
	Floor  int64         // bytes a minute below which it is slow; 0: none
	Window time.Duration // over which it is measured
}

// Watch measures the received bytes until ctx ends, or two windows pass without any: then it
// returns ErrSilent. It calls told after each window. Work below the floor is slow and its slot
// spare; in the end so is the slot of work above it that is not fast.
func (r Rate) Watch(ctx context.Context, s *Slot, came *atomic.Int64, told func(perMinute int64, slow bool)) error {
	tick := time.NewTicker(r.Window)
	defer tick.Stop()
	before, quiet := int64(0), 0
	for held := 1; ; held++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := came.Load()
		if quiet++; now > before {
			quiet = 0
		}
		if quiet >= silent {
			return fmt.Errorf("%w for %s", ErrSilent, silent*r.Window)
		}
		perMinute := int64(float64(now-before) * float64(time.Minute) / float64(r.Window)) // an int64 would overflow
		before = now
		slow := perMinute < r.Floor
		told(perMinute, slow)
		s.Slow(slow)
		s.Spare(slow || perMinute < r.Floor<<min(max(held-undisturbed, 0), mostDoubled))
	}
}
