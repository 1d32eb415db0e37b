package agent

import "sync"

// maxKnown bounds the revisions in a cache.
const maxKnown = 4096

// cache keeps expensive results in memory for at most so many keys; when full it is emptied.
type cache[K comparable, V any] struct {
	most int

	mu   sync.Mutex
	held map[K]V
}

func (c *cache[K, V]) get(key K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	value, ok := c.held[key]
	return value, ok
}

// put returns whether the key is new.
func (c *cache[K, V]) put(key K, value V) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.held[key]
	if c.held == nil || !known && len(c.held) >= c.most {
		c.held = map[K]V{}
	}
	c.held[key] = value
	return !known
}
