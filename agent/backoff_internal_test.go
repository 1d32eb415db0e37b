package agent

import (
	"testing"
	"time"
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
			if d := b.fail(); d < want/2 || d > want {
				t.Fatalf("failure %d from %s to %s waits %s, want %s to %s", i+1, b.first, b.most, d, want/2, want)
			}
			want = min(2*want, b.most)
		}
		b.reset()
		if d := b.fail(); d > b.first {
			t.Errorf("after it was reset it waits %s", d)
		}
	}
}
