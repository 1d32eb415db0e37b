package main

import (
	"slices"
	"time"
)

// device is what was measured with one containerd.
type device struct {
	Version    string
	Containerd string
	External   bool
	Counted    bool
	Install    install
	Updates    []updates
	Polls      polls
}

// install is the first installation, with everything still to be pulled.
type install struct {
	Took       time.Duration
	ImageBytes int64
	Written    written
}

// updates are parameter changes, each recreating one of the two services.
type updates struct {
	Settle  time.Duration
	Median  time.Duration
	Max     time.Duration
	Written written
}

// polls are polls that bring nothing.
type polls struct {
	Count   int
	Written written
	Logged  int64
	CPU     time.Duration // of the agent
}

// written is how many bytes processes have handed to the medium, each with the
// children that it has buried, and what the device under it was given.
type written struct {
	Agent      int64
	Containerd int64 // if it is external
	Shims      int64 // those that run; an update may replace them
	Syncs      int64 // calls of fsync and the like, of all of them and of containers
	wear
}

// wear is what a device was given.
type wear struct {
	Device  int64 // bytes
	Writes  int64
	Flushes int64
}

func (w written) since(before written) written {
	w = w.plus(before.times(-1))
	w.Shims = max(0, w.Shims) // one that has ended took its count with it
	return w
}

func (w written) plus(o written) written {
	return written{
		w.Agent + o.Agent, w.Containerd + o.Containerd, w.Shims + o.Shims, w.Syncs + o.Syncs,
		wear{w.Device + o.Device, w.Writes + o.Writes, w.Flushes + o.Flushes},
	}
}

func (w written) times(n int64) written {
	return written{w.Agent * n, w.Containerd * n, w.Shims * n, w.Syncs * n, wear{w.Device * n, w.Writes * n, w.Flushes * n}}
}

func (w written) each(n int) written {
	of := int64(n)
	return written{w.Agent / of, w.Containerd / of, w.Shims / of, w.Syncs / of, wear{w.Device / of, w.Writes / of, w.Flushes / of}}
}

// median is the middle value, or the upper one of the two.
func median[T int64 | time.Duration](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}
