package limit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	// undisturbed is for how many windows work keeps its slot as long as it is above the floor. After that the rate that it
	// needs while others wait doubles with each window, up to mostDoubled times.
	undisturbed = 10
	mostDoubled = 20
	silent      = 2 // windows without a byte
)

// ErrSilent says that nothing came.
var ErrSilent = errors.New("nothing was received")

// Rate is what work has to bring.
type Rate struct {
	Floor  int64         // bytes a minute, below which it is slow; 0: none
	Window time.Duration // over which it is measured
}

// Flow is what comes of work.
type Flow struct {
	Came  atomic.Int64 // bytes
	local atomic.Int64 // beginnings and ends of what this device does itself
}

// Local does the part of work that depends on this device alone. Its time does not count.
func (f *Flow) Local(do func() error) error {
	f.local.Add(1)
	defer f.local.Add(1)
	return do()
}

// Watch measures what comes until ctx ends, or nothing has come for two windows: then it returns ErrSilent. Work that is
// below the floor is slow, which told is called with after each window, and its slot is spare. So is in the end that of
// work above it, unless it is fast.
func (r Rate) Watch(ctx context.Context, s *Slot, f *Flow, told func(perMinute int64, slow bool)) error {
	tick := time.NewTicker(r.Window)
	defer tick.Stop()
	came, local, quiet := int64(0), int64(0), 0
	for held := 1; ; held++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		before, worked := came, local
		came, local = f.Came.Load(), f.local.Load()
		if local != worked || local%2 == 1 {
			quiet = 0
			told(0, false)
			s.Spare(false)
			continue
		}
		if quiet++; came > before {
			quiet = 0
		}
		if quiet >= silent {
			return fmt.Errorf("%w for %s", ErrSilent, silent*r.Window)
		}
		perMinute := int64(float64(came-before) * float64(time.Minute) / float64(r.Window)) // an int64 would overflow
		slow := perMinute < r.Floor
		told(perMinute, slow)
		s.Slow(slow)
		s.Spare(slow || perMinute < r.Floor<<min(max(held-undisturbed, 0), mostDoubled))
	}
}
