package image

import (
	"context"
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
	err = slot.run(t.Context(), true, func(string) {}, func(ctx context.Context) error {
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
