package medium

import "time"

// Fault is requests that are answered with an I/O error. A write that fails
// changes nothing, a flush that fails keeps the cache.
type Fault struct {
	Flush bool // flushes fail; else writes
	Skip  int  // how many succeed before
	Times int  // how many fail; 0: all from then on
}

// Fail lets requests fail from now on. Faults do not know of each other.
func (d *Disk) Fail(f Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails = append(d.fails, f)
}

// Mend takes all faults away, also slowness.
func (d *Disk) Mend() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails, d.flush = nil, 0
}

// SlowFlush has each flush take a while, as flash does that makes room first.
func (d *Disk) SlowFlush(each time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flush = each
}

// faulty says whether the present request, a flush or else a write, is to fail. The
// disk is locked.
func (d *Disk) faulty(flush bool) bool {
	fails := false
	for i := range d.fails {
		f := &d.fails[i]
		switch {
		case f.Flush != flush:
		case f.Skip > 0:
			f.Skip--
		case f.Times == 0:
			fails = true
		case f.Times > 0:
			if f.Times--; f.Times == 0 {
				f.Times = -1 // used up
			}
			fails = true
		}
	}
	if fails {
		d.counted.Failed++
	}
	return fails
}
