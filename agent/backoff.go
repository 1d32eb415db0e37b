package agent

import (
	"math/rand/v2"
	"time"

	"github.com/opencontainers/go-digest"
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

// longestVain bounds how long a manifest waits for its documents to be fetched
// again. A bundle may have 64 MiB, and the network may be paid for by the byte.
const longestVain = time.Hour

// vain remembers that the documents of a manifest were fetched and are not what
// it says. The manifest is asked for at every poll, so that another one is seen
// at once; the same documents are fetched ever more rarely, the second time at the
// next poll.
type vain struct {
	manifest digest.Digest
	pause    backoff
	until    time.Duration // by the clock that cannot be set
	err      error         // what was wrong with them
}

// before returns what was wrong with the documents of a manifest if it is too
// early to fetch them again.
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
