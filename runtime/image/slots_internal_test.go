package image

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

const testWindow = time.Minute

// bring downloads with a slot what is had after each while, for so many windows.
func bring(t *testing.T, slot *slot, others bool, windows int, had func(passed time.Duration) int64) error {
	t.Helper()
	begun := time.Now()
	return slot.run(t.Context(), others, func(string, bool) {}, func(ctx context.Context) error {
		for time.Since(begun) < time.Duration(windows)*testWindow {
			slot.came.Store(had(time.Since(begun)))
			select {
			case <-time.After(testWindow / 20):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
}

// A fast download is not mistaken for a slow one: 200 MB in a short window overflowed the arithmetic of the rate.
func TestAFastDownloadIsNotSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1, DefaultMinRate, testWindow)
		slot, err := s.take(t.Context(), "fast.example", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		const inAWindow = 200e9
		err = bring(t, slot, true, 3, func(passed time.Duration) int64 {
			return int64(inAWindow * passed.Seconds() / testWindow.Seconds())
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// What somebody else waits for is held for a time by a registry that stays just above the floor, and not for ever.
func TestADownloadAboveTheFloorGivesItsSlotInTheEnd(t *testing.T) {
	const windows = 40
	for name, c := range map[string]struct {
		other string // registry
		want  error
	}{
		"nobody waits":              {"", nil},
		"the same registry":         {"steady.example", nil},
		"another registry would do": {"other.example", errSlotGiven},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSlots(1, DefaultMinRate, testWindow)
				slot, err := s.take(t.Context(), "steady.example", "content", nil)
				if err != nil {
					t.Fatal(err)
				}
				if c.other != "" {
					go func() { // ends with the test at the latest
						if other, err := s.take(t.Context(), c.other, "content", nil); err == nil {
							other.release()
						}
					}()
				}
				begun := time.Now()
				err = bring(t, slot, false, windows, func(passed time.Duration) int64 {
					return int64(100 * DefaultMinRate * passed.Minutes())
				})
				if took := time.Since(begun); !errors.Is(err, c.want) || err != nil && took < undisturbed*testWindow {
					t.Errorf("%v after %s", err, took)
				}
			})
		})
	}
}
