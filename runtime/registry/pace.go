package registry

import (
	"context"
	"sync"
	"time"
)

const (
	// vainPause is the pause after an interruption before Enough has come, and doubled each time up to longestVain.
	vainPause   = time.Second
	longestVain = time.Minute
	maxPaced    = 1024 // downloads that are remembered
)

// Pace delays the requests that continue downloads which keep breaking off: by what has come between interruptions, and
// not by when something came. Clients share one, since what one call begins another continues.
type Pace struct {
	mu    sync.Mutex
	known map[string]interruptions // by host and digest
}

// interruptions is what is known of a download that is not complete.
type interruptions struct {
	mark  int64     // offset up to which enough has come
	vain  int       // interruptions since
	until time.Time // nobody asks for the rest before
}

// brokeOff takes note of an interruption of what was asked for from an offset on, and tells how many have been in vain
// since enough came.
func (p *Pace) brokeOff(key string, from, at int64) (vain int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	download, ok := p.known[key]
	if !ok || from < download.mark { // it has started again
		download.mark = from
	}
	pause := firstPause
	if at-download.mark >= Enough {
		download.mark, download.vain = at, 0
	} else {
		pause = min(vainPause<<min(download.vain, 10), longestVain)
		download.vain++
	}
	download.until = time.Now().Add(pause)
	if p.known == nil || len(p.known) >= maxPaced {
		p.known = make(map[string]interruptions)
	}
	p.known[key] = download
	return download.vain
}

func (p *Pace) end(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, key)
}

// wait waits until the rest of a download may be asked for.
func (p *Pace) wait(ctx context.Context, key string) error {
	p.mu.Lock()
	until := p.known[key].until
	p.mu.Unlock()
	return wait(ctx, time.Until(until))
}
