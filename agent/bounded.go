package agent

import (
	"maps"
	"sync"
)

// maxKnown bounds how many revisions something is kept in mind of.
const maxKnown = 4096

// bounded keeps what took long to find out, of so many at most: it starts anew when it
// is full. It is in memory alone.
type bounded[K comparable, V any] struct {
	most int

	mu   sync.Mutex
	held map[K]V
}

func (b *bounded[K, V]) get(key K) (V, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	value, ok := b.held[key]
	return value, ok
}

func (b *bounded[K, V]) put(key K, value V) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.held[key]; b.held == nil || !known && len(b.held) >= b.most {
		b.held = map[K]V{}
	}
	b.held[key] = value
}

// hasRoom says that put would drop nothing.
func (b *bounded[K, V]) hasRoom(key K) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, known := b.held[key]
	return known || len(b.held) < b.most
}

func (b *bounded[K, V]) forget(which func(K) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.held, func(key K, _ V) bool { return which(key) })
}
