package registry

import (
	"context"
	"sync"
	"time"
)

const (
	// vainPause is the first pause before Enough has come, doubled each time up to longestVain.
	vainPause   = time.Second
	longestVain = time.Minute
	maxPaced    = 1024 // downloads that are remembered
)

// Pace delays the continuation of downloads that keep breaking off, by the bytes that came
// between interruptions, not by time. Clients share one, since a call may continue another's
// download.
type Pace struct {
	mu    sync.Mutex
	known map[string]interruptions // by host and digest
}

type interruptions struct {
	mark  int64     // offset up to which enough has come
	vain  int       // interruptions since
	until time.Time // no request for the rest before
}

// brokeOff notes an interruption, and returns how many have been in vain since enough came.
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

// wait waits until the rest of a download may be requested.
func (p *Pace) wait(ctx context.Context, key string) error {
	p.mu.Lock()
	until := p.known[key].until
	p.mu.Unlock()
	return wait(ctx, time.Until(until))
}
