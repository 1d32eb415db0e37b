package main

import (
	"context"
	"fmt"
	"time"

	"github.com/margolite/margolite/test/plant"
)

// How rest finds out that a device is at rest: containerd collects garbage a
// second after the last deletion.
const (
	stillness = 1500 * time.Millisecond
	restless  = 30 * time.Second
)

// rest waits until the WFM has heard everything and no process has written for a
// while, however often the agent polls, and tells what has been written by then.
func (s *subject) rest(ctx context.Context) (written, error) {
	if err := s.Quiet(ctx); err != nil {
		return written{}, err
	}
	var last written
	began := time.Now()
	for since := began; time.Since(since) < stillness; {
		if time.Since(began) > restless {
			return last, fmt.Errorf("the device does not come to rest: it still writes after %s without a change", restless)
		}
		now, err := s.written()
		if err != nil {
			return now, err
		}
		now.wear = wear{} // the kernel writes when it likes
		if now != last {
			last, since = now, time.Now()
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return now, err
		}
	}
	return s.flushed()
}

// flushed is what has been written, with nothing still on its way to the device.
func (s *subject) flushed() (written, error) {
	if err := s.medium.flush(); err != nil {
		return written{}, err
	}
	return s.written()
}

// written is what has been written until now.
func (s *subject) written() (w written, err error) {
	for _, kind := range []struct {
		sum  *int64
		pids []int
	}{
		{&w.Agent, []int{s.Agent()}},
		{&w.Shims, s.Shims()},
	} {
		for _, pid := range kind.pids {
			counts, err := plant.Counts(pid, "io")
			if err != nil {
				return w, err
			}
			// The pages it made dirty, with what containers' file systems and databases mapped, but without
			// the file system's own journal.
			*kind.sum += counts["write_bytes"]
		}
	}
	if s.syncs != nil {
		counts, err := s.syncs.Count()
		if err != nil {
			return w, err
		}
		for _, n := range counts {
			w.Syncs += n
		}
	}
	w.wear, err = s.medium.written()
	return w, err
}
