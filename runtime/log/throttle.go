package log

import "time"

const (
	// throttleRate limits the growth of one container's log in bytes a second, as written, which
	// is what costs processor time: around short lines much is added.
	throttleRate = 4 << 20
	// throttleBurst is how much it may grow at once after a quiet time.
	throttleBurst = 8 << 20
)

// throttle is a token bucket in bytes. The zero value is full.
type throttle struct {
	left  float64 // negative: debt
	since time.Time
}

// spend takes n bytes from the bucket, and returns how long it is in debt.
func (t *throttle) spend(n int, now time.Time) time.Duration {
	t.left = min(throttleBurst, t.left+now.Sub(t.since).Seconds()*throttleRate) - float64(n)
	t.since = now
	if t.left >= 0 {
		return 0
	}
	return time.Duration(-t.left / throttleRate * float64(time.Second))
}
