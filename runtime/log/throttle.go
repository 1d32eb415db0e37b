package log

import "time"

const (
	// throttleRate is how many bytes a second the log of one container may grow, as written.
	// That is what costs processor time: of a short line most is what is written around it.
	throttleRate = 4 << 20
	// throttleBurst is how much it may grow at once after a quiet time.
	throttleBurst = 8 << 20
)

// throttle is a token bucket in bytes. The zero value is full.
type throttle struct {
	left  float64 // negative: a debt
	since time.Time
}

// spend takes n bytes from the bucket, and returns after what time it is out of debt.
func (t *throttle) spend(n int, now time.Time) time.Duration {
	t.left = min(throttleBurst, t.left+now.Sub(t.since).Seconds()*throttleRate) - float64(n)
	t.since = now
	if t.left >= 0 {
		return 0
	}
	return time.Duration(-t.left / throttleRate * float64(time.Second))
}
