package image

import (
	"fmt"
	"math"
	"sync"
)

const (
	// portion is how many bytes a layer may write before the file system is looked at again, and portionFiles how many files.
	portion      = 4 << 20
	portionFiles = 64
	// rewrites is how many times the free space a layer may write in all. It is more than 1 because small entries take
	// less than what is counted for them, and because a layer may hold a file twice.
	rewrites = 4
)

// allowances are the layers that are being unpacked. They leave the reserve alone, and what others of them are estimated to
// become: one that grows beyond its own estimate fails, and not those beside it.
type allowances struct {
	mu  sync.Mutex
	all map[*allowance]bool
}

// allowance is what one layer may write. It is a containerd.Space.
type allowance struct {
	of      *allowances
	medium  medium
	reserve int64
	refs    []string

	most            int64 // bytes that it may write in all, also over what it wrote before
	taken           int64 // bytes of those
	estimate        int64 // bytes, of what it has not written yet
	left, leftFiles int64 // that it may write without a look
	pending         int64 // bytes that it was given, and may not have written yet
}

// begin makes the allowance of a layer that is estimated to write so many bytes to a medium.
func (a *allowances) begin(m medium, reserve, estimate int64, refs []string) *allowance {
	l := &allowance{of: a, medium: m, reserve: reserve, estimate: estimate, refs: refs, most: math.MaxInt64}
	if now := m; now.look(reserve) == nil {
		l.most = rewrites * max(now.free-now.reserved, 0)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = make(map[*allowance]bool)
	}
	a.all[l] = true
	return l
}

func (l *allowance) end() {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	delete(l.of.all, l)
}

// Take fails where so much would use the reserve, or what others need.
func (l *allowance) Take(bytes, files int64) error {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.pending = bytes // the entry before is written
	l.estimate = max(l.estimate-bytes, 0)
	if bytes > l.most-l.taken {
		return l.refuse(l.medium, true)
	}
	l.taken += bytes
	if bytes <= l.left && files <= l.leftFiles {
		l.left -= bytes
		l.leftFiles -= files
		return nil
	}
	m := l.medium
	if err := m.look(l.reserve); err != nil {
		return err
	}
	free, freeFiles := m.free-m.reserved, m.freeFiles-m.reservedFiles
	for other := range l.of.all {
		if other != l && other.medium.device == m.device {
			free -= max(other.left+other.pending, other.estimate)
			freeFiles -= other.leftFiles
		}
	}
	if bytes > free || m.files > 0 && files > freeFiles {
		return l.refuse(m, bytes > free)
	}
	// Some more, but not the last.
	l.left = min(portion, (free-bytes)/4)
	l.leftFiles = portionFiles
	if m.files > 0 {
		l.leftFiles = min(portionFiles, (freeFiles-files)/4)
	}
	return nil
}

// refuse is the error where a medium has less than a layer needs.
func (l *allowance) refuse(m medium, bytes bool) error {
	e := &NoSpaceError{Dir: m.dir, Free: m.free, Reserved: min(m.reserved, m.free), Images: l.refs, reserve: l.reserve, grown: true}
	if bytes {
		e.Needed = max(l.medium.free-l.medium.reserved, 0) + 1 // than there was
	} else {
		e.FreeFiles, e.ReservedFiles = m.freeFiles, m.reservedFiles
		e.NeededFiles = max(l.medium.freeFiles-l.medium.reservedFiles, 0) + 1
	}
	return &Error{Kind: NoSpace, Err: fmt.Errorf("cannot unpack: %w", e)}
}

// Wrote takes note of what has been written.
func (l *allowance) Wrote(bytes int64) {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.pending = max(l.pending-bytes, 0)
}
