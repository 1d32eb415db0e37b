package wfm

import (
	"cmp"
	"time"
)

// Limits bound what the WFM can make the device hold and wait for. Zero values mean the defaults,
// which fit a device of 64 MB.
type Limits struct {
	Document int64 // bytes of one deployment document; 256 KiB
	Bundle   int64 // bytes of the bundle, compressed; 64 MiB
	Expanded int64 // bytes of the bundle, expanded, and of all documents of one call; 256 MiB
	Entries  int   // entries of the bundle; 10000

	// Speed is the slowest tolerated transfer, in bytes per second. It makes the deadline of an
	// answer from the limit of its size, and of a bundle from what has arrived. 4 KiB.
	Speed int64
	// ConnectionAge bounds the use of a connection (ID-12): an hour, or less.
	ConnectionAge time.Duration
}

const (
	maxHeader  = 64 << 10
	maxIgnored = 4 << 10 // of a body that is not read
	maxRatio   = 200     // average expansion of a byte of a bundle
	freeRatio  = 1 << 20 // expanded bytes before that counts
)

const (
	defaultTimeout   = 30 * time.Second
	maxConnectionAge = time.Hour
	defaultPort      = "443" // ID-11
)

// WithDefaults replaces zero values by the defaults.
func (l Limits) WithDefaults() Limits {
	return Limits{
		Document:      cmp.Or(l.Document, 256<<10),
		Bundle:        cmp.Or(l.Bundle, 64<<20),
		Expanded:      cmp.Or(l.Expanded, 256<<20),
		Entries:       cmp.Or(l.Entries, 10000),
		Speed:         cmp.Or(l.Speed, 4<<10),
		ConnectionAge: min(cmp.Or(l.ConnectionAge, maxConnectionAge), maxConnectionAge),
	}
}

func (l Limits) deadline(timeout time.Duration, size int64) time.Duration {
	return timeout + time.Duration(size/l.Speed)*time.Second
}
