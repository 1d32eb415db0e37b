package faults

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/faults/medium"
)

const (
	// fewWrites is how many writes or flushes may succeed before one fails: what
	// some changes need.
	fewWrites, fewFlushes = 200, 40
	// fullest is the most that is left free on a medium that somebody fills.
	fullest = 48 << 20
)

// IOErrors makes changes while a write or a flush of the medium fails, at any
// time, once, a few times or for good.
func (r *Rig) IOErrors(n int) {
	r.T.Helper()
	for range n {
		f := medium.Fault{Flush: r.Rand.IntN(3) == 0, Times: []int{1, 1, 2, 10, 0}[r.Rand.IntN(5)]}
		f.Skip = r.Rand.IntN(fewWrites)
		if f.Flush {
			f.Skip = r.Rand.IntN(fewFlushes)
		}
		r.IOError(f)
	}
}

// IOError makes changes while the medium fails, and looks at what runs then. Then
// the device gets another start with a medium that works: its file system is
// repaired, and everything comes to what the WFM wants.
func (r *Rig) IOError(f medium.Fault) {
	r.T.Helper()
	undisturbed := r.Undisturbed()
	r.T.Logf("the medium: %+v", f)
	r.disk.Fail(f)
	r.failures++
	for range 2 + r.Rand.IntN(2) {
		r.Change()
		r.pause(longest)
	}
	undisturbed()
	r.T.Logf("the medium was asked for %+v", r.disk.Counts())
	r.failures++ // also for what was published meanwhile
	r.CutPower(medium.None)
	r.Converge()
}

// Fill makes changes while somebody else fills the medium, at any moment and up
// to any byte.
func (r *Rig) Fill(n int) {
	r.T.Helper()
	for range n {
		left := r.Rand.Int64N(fullest)
		if r.Rand.IntN(3) == 0 {
			left = 0
		}
		r.FillTo(left)
	}
}

// FillTo makes changes while somebody else leaves only so many bytes of the
// medium. Whoever it was goes, with or without a kill of the agent or a cut of
// the power before; then everything comes to what the WFM wants by itself.
func (r *Rig) FillTo(left int64) {
	r.T.Helper()
	undisturbed := r.Undisturbed()
	if r.Rand.IntN(2) == 0 {
		r.Change()
		r.pause(longest)
	}
	r.failures++
	r.fill(left)
	r.Change()
	r.pause(2 * longest)
	undisturbed()
	switch r.Rand.IntN(3) {
	case 0:
		r.KillAgent()
		r.pause(longest)
		undisturbed()
	case 1:
		r.CutPower(medium.Losses()[r.Rand.IntN(len(medium.Losses()))])
		r.pause(2 * longest)
	}
	r.failures++ // also for what was published meanwhile
	check(r.T, os.Remove(r.ballast()))
	r.Converge()
}

func (r *Rig) ballast() string { return filepath.Join(r.mountpoint(), "ballast") }

// fill takes all but so many bytes of the medium.
func (r *Rig) fill(left int64) {
	r.T.Helper()
	f := expect.Value(os.Create(r.ballast()))(r.T)
	var size int64
	for step := int64(64 << 20); step >= medium.BlockBytes; {
		if free := r.free() - left; free < step {
			step /= 2
			continue
		}
		err := unix.Fallocate(int(f.Fd()), 0, size, step)
		if errors.Is(err, unix.ENOSPC) {
			step /= 2
			continue
		}
		check(r.T, err)
		size += step
	}
	dir := expect.Value(os.Open(r.mountpoint()))(r.T)
	check(r.T, errors.Join(f.Sync(), f.Close(), dir.Sync(), dir.Close()))
	r.T.Logf("the medium has %d bytes left, of %d wanted", r.free(), left)
}

// SlowFlushes makes changes and kills on a medium that takes its time.
func (r *Rig) SlowFlushes(each time.Duration, kills int) {
	r.T.Helper()
	r.disk.SlowFlush(each)
	defer r.disk.Mend()
	r.T.Logf("a flush takes %s", each)
	r.Kills(kills)
}
