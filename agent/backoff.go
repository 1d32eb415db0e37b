package agent

import (
	"math/rand/v2"
	"time"

	"github.com/opencontainers/go-digest"
)

// backoff gives the time to wait after each failure in a row. It doubles from first to most, less
// up to half at random, so that many devices do not come back at once.
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

// longestVain bounds the time between two fetches of a manifest's documents that did not match. A
// bundle may have 64 MiB, and the network may be paid for by the byte.
const longestVain = time.Hour

// vain remembers that the fetched documents of a manifest did not match it. The manifest is still
// polled, so that a new one is seen at once, but the same documents are fetched with growing
// delays, the second time at the next poll.
type vain struct {
	manifest digest.Digest
	pause    backoff
	until    time.Duration // by the clock that cannot be set
	err      error         // their fault
}

// before returns the recorded fault of the documents while it is too early to fetch them again.
func (v *vain) before(manifest digest.Digest, up time.Duration) error {
	if v.manifest == manifest && up < v.until {
		return v.err
	}
	return nil
}

func (v *vain) note(manifest digest.Digest, up, interval time.Duration, err error) {
	if v.manifest != manifest {
		*v = vain{manifest: manifest, pause: backoff{first: interval / 2, most: max(longestVain, interval/2)}}
	}
	v.until, v.err = up+v.pause.fail(), err
}
