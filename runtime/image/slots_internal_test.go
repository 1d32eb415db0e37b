package image

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// A fast download is not mistaken for a slow one: 200 MB in a window overflowed the arithmetic of the rate.
func TestAFastDownloadIsNotSlow(t *testing.T) {
	const window, aWindow = 300 * time.Millisecond, 200e6
	s := newSlots(1, DefaultMinRate, window)
	slot, err := s.take(t.Context(), "fast.example", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	err = slot.run(t.Context(), true, func(string, bool) {}, func(ctx context.Context) error {
		begun := time.Now()
		tick := time.NewTicker(window / 100)
		defer tick.Stop()
		for {
			passed := time.Since(begun)
			slot.came.Store(int64(aWindow * passed.Seconds() / window.Seconds()))
			if passed > 3*window {
				return nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// What somebody else waits for is held for a time by a registry that stays just above the floor, and not for ever.
func TestADownloadAboveTheFloorGivesItsSlotInTheEnd(t *testing.T) {
	const window = 60 * time.Millisecond
	for name, c := range map[string]struct {
		other string // registry
		want  error
	}{
		"nobody waits":              {"", nil},
		"the same registry":         {"steady.example", nil},
		"another registry would do": {"other.example", errSlotGiven},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSlots(1, DefaultMinRate, window)
			slot, err := s.take(t.Context(), "steady.example", "content", nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.other != "" {
				ctx, cancel := context.WithCancel(t.Context())
				var waits sync.WaitGroup
				waits.Go(func() {
					if other, err := s.take(ctx, c.other, "content", nil); err == nil {
						other.release()
					}
				})
				defer waits.Wait()
				defer cancel()
			}
			begun := time.Now()
			err = slot.run(t.Context(), false, func(string, bool) {}, func(ctx context.Context) error {
				tick := time.NewTicker(window / 20)
				defer tick.Stop()
				for time.Since(begun) < 40*window {
					select {
					case <-tick.C:
						slot.came.Add(100) // some hundred times the floor
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return nil
			})
			if !errors.Is(err, c.want) {
				t.Errorf("%v after %s", err, time.Since(begun))
			}
			if err != nil && time.Since(begun) < undisturbed*window {
				t.Errorf("it was given after %s", time.Since(begun))
			}
		})
	}
}
