package agent

import (
	"testing"
	"time"

	"github.com/margolite/margolite/test/expect"
)

func TestBackoffDoublesUpToItsMost(t *testing.T) {
	for _, b := range []backoff{
		{first: time.Second, most: 5 * time.Minute},
		{first: time.Hour, most: time.Hour},
		{first: 24 * time.Hour, most: 24 * time.Hour},
		{first: 10 * time.Minute, most: 6 * time.Hour},
	} {
		want := b.first
		for i := range 1000 {
			d := b.fail()
			expect.Equal(t, want/2 <= d && d <= want, true, "failure %d from %s to %s waits for %s of %s", i+1, b.first, b.most, d, want)
			want = min(2*want, b.most)
		}
		b.reset()
		expect.Equal(t, b.fail() <= b.first, true, "after a reset it waits for no more than %s", b.first)
	}
}
