package medium

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// BlockBytes is what the device reads and writes at least.
	BlockBytes = 4096
	// sectorBytes are on the medium whole, or not at all.
	sectorBytes = 512
)

// block is the content of one; it is not changed once it is somewhere.
type block *[BlockBytes]byte

// change is a block that was written, and may not be on the medium yet.
type change struct {
	number int64
	block  block
}

// Disk is what a block device holds: what is on the medium, and what is in the
// cache before it until it is flushed. It is safe for concurrent use.
type Disk struct {
	blocks int64

	mu      sync.Mutex
	shown   map[int64]block // what is read; blocks that lack are zero
	medium  map[int64]block // what outlives the power
	cache   []change        // the difference, in the order in which it came
	dead    bool            // without power: nothing that comes is kept
	fails   []Fault
	flush   time.Duration // that a flush takes
	counted Counts
}

// Counts are what a disk was asked for.
type Counts struct {
	Writes, Flushes int
	Bytes           int64 // written
	Failed          int   // writes and flushes
}

// New makes a disk of zeros; a size is rounded down to whole blocks.
func New(bytes int64) *Disk {
	return &Disk{blocks: bytes / BlockBytes, shown: map[int64]block{}, medium: map[int64]block{}}
}

// Load makes a disk of an image. Zeros in it cost nothing.
func Load(image string) (*Disk, error) {
	f, err := os.Open(image)
	if err != nil {
		return nil, fmt.Errorf("cannot load disk: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot load disk: %w", err)
	}
	d := New(info.Size())
	for n := range d.blocks {
		var b [BlockBytes]byte
		if _, err := f.ReadAt(b[:], n*BlockBytes); err != nil {
			return nil, fmt.Errorf("cannot load disk: %w", err)
		}
		if b != ([BlockBytes]byte{}) {
			d.shown[n], d.medium[n] = &b, &b
		}
	}
	return d, nil
}

// Save writes what is on the medium to a new file, zeros as holes.
func (d *Disk) Save(image string) error {
	d.mu.Lock()
	medium := maps.Clone(d.medium)
	d.mu.Unlock()
	f, err := os.Create(image)
	if err != nil {
		return fmt.Errorf("cannot save disk: %w", err)
	}
	err = f.Truncate(d.Bytes())
	for n, b := range medium {
		if err != nil {
			break
		}
		_, err = f.WriteAt(b[:], n*BlockBytes)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("cannot save disk: %w", err)
	}
	return nil
}

// Bytes is the size of the disk.
func (d *Disk) Bytes() int64 { return d.blocks * BlockBytes }

// Counts are what it was asked for up to now.
func (d *Disk) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counted
}

// Loss says what becomes of the cache when the power goes.
type Loss string

// What disks do.
const (
	All    Loss = "all"    // nothing of the cache is on the medium
	Tail   Loss = "tail"   // what came first is, up to some write
	Random Loss = "random" // some of it is, in any order
	Torn   Loss = "torn"   // the same, and of some blocks only some sectors
	None   Loss = "none"   // everything is
)

// Losses are all there are.
func Losses() []Loss { return []Loss{All, Tail, Random, Torn, None} }

// Cut takes the power away: it gives what is on the medium then as another disk.
// This one takes whatever else comes, and keeps nothing of it.
func (d *Disk) Cut(loss Loss, rng *rand.Rand) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = true
	left := maps.Clone(d.medium)
	kept := d.cache
	share := 1.0
	switch loss {
	case All:
		kept = nil
	case Tail:
		kept = kept[:rng.IntN(len(kept)+1)]
	case Random, Torn:
		share = rng.Float64()
	}
	for _, c := range kept {
		if share < 1 && rng.Float64() >= share {
			continue
		}
		b := c.block
		if loss == Torn && rng.IntN(4) == 0 {
			b = torn(left[c.number], c.block, rng)
		}
		left[c.number] = b
	}
	d.cache = nil
	return &Disk{blocks: d.blocks, shown: maps.Clone(left), medium: left}
}

// torn is a block of which not all sectors were written over the old ones.
func torn(old, written block, rng *rand.Rand) block {
	var b [BlockBytes]byte
	if old != nil {
		b = *old
	}
	for at := 0; at < BlockBytes; at += sectorBytes {
		if rng.IntN(2) == 0 {
			copy(b[at:at+sectorBytes], written[at:at+sectorBytes])
		}
	}
	return &b
}

// readAt fills p from a place on the disk; beyond its end there is nothing.
func (d *Disk) readAt(p []byte, at int64) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at >= d.Bytes() {
		return 0
	}
	p = p[:min(int64(len(p)), d.Bytes()-at)]
	for n := 0; n < len(p); {
		number, offset := (at+int64(n))/BlockBytes, (at+int64(n))%BlockBytes
		if b := d.shown[number]; b != nil {
			n += copy(p[n:], b[offset:])
			continue
		}
		hole := p[n:min(len(p), n+int(BlockBytes-offset))]
		clear(hole)
		n += len(hole)
	}
	return len(p)
}

// writeAt takes p into the cache.
func (d *Disk) writeAt(p []byte, at int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return nil
	}
	if at < 0 || at+int64(len(p)) > d.Bytes() {
		return fmt.Errorf("cannot write %d bytes at %d: %w", len(p), at, io.ErrShortWrite)
	}
	d.counted.Writes++
	d.counted.Bytes += int64(len(p))
	if d.faulty(false) {
		return syscall.EIO
	}
	for len(p) > 0 {
		number, offset := at/BlockBytes, at%BlockBytes
		var b [BlockBytes]byte
		if old := d.shown[number]; old != nil {
			b = *old
		}
		n := copy(b[offset:], p)
		d.shown[number] = &b
		d.cache = append(d.cache, change{number, &b})
		p, at = p[n:], at+int64(n)
	}
	return nil
}

// sync brings the cache to the medium.
func (d *Disk) sync() error {
	d.mu.Lock()
	wait := d.flush
	d.mu.Unlock()
	if wait > 0 {
		time.Sleep(wait) // what it is asked to take
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return nil
	}
	d.counted.Flushes++
	if d.faulty(true) {
		return syscall.EIO
	}
	for _, c := range d.cache {
		d.medium[c.number] = c.block
	}
	d.cache = nil
	return nil
}
