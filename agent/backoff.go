package agent

import (
	"math/rand/v2"
	"time"
)

// backoff gives the time to wait after each failure in a row: it doubles from
// first to most, and a random half of it is taken off so that many devices do
// not come back at once.
type backoff struct {
	first, most time.Duration
	failures    int
}

func (b *backoff) fail() time.Duration {
	d := b.first
	for i := 0; i < b.failures && d < b.most; i++ { // ends long before an overflow
		d *= 2
	}
	d = min(d, b.most)
	b.failures++
	return d/2 + rand.N(d/2+1)
}

func (b *backoff) reset() { b.failures = 0 }
