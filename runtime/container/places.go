package container

import (
	"context"
	"sync"
	"time"
)

// blockedStart is how long a command may take to start before others may start,
// too: it waits for something in its container, and does not use the processor.
const blockedStart = 2 * time.Second

// places bounds how many callers do the same thing at a time. Things have names.
type places struct {
	mu    sync.Mutex
	named map[string]*place
}

type place struct {
	taken chan struct{}
	users int // have a place or wait for one; guarded by places.mu
}

// bound says how many may do the thing with this name.
type bound struct {
	name string
	most int
}

// take waits for a place within each bound, one after the other, until ctx ends. A
// caller that waits for one of them keeps the places it already has.
func (p *places) take(ctx context.Context, bounds ...bound) (release func(), err error) {
	var taken []func()
	release = sync.OnceFunc(func() {
		for _, release := range taken {
			release()
		}
	})
	for _, b := range bounds {
		one, err := p.takeOne(ctx, b)
		if err != nil {
			release()
			return nil, err
		}
		taken = append(taken, one)
	}
	return release, nil
}

func (p *places) takeOne(ctx context.Context, b bound) (release func(), err error) {
	p.mu.Lock()
	at := p.named[b.name]
	if at == nil {
		at = &place{taken: make(chan struct{}, b.most)}
		if p.named == nil {
			p.named = make(map[string]*place)
		}
		p.named[b.name] = at
	}
	at.users++
	p.mu.Unlock()
	leave := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if at.users--; at.users == 0 {
			delete(p.named, b.name)
		}
	}
	select {
	case at.taken <- struct{}{}:
		return func() { <-at.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
