package main

import (
	"slices"
	"time"
)

// device is what was measured of a device.
type device struct {
	Version string
	Counted bool
	Install install
	Updates updates
	Polls   polls
}

// install is the first installation, with everything still to be pulled.
type install struct {
	Took       time.Duration
	ImageBytes int64
	Written    written
}

// updates are parameter changes, each recreating one of the two services.
type updates struct {
	Median  time.Duration
	Max     time.Duration
	Written written
}

// polls are polls that bring nothing.
type polls struct {
	Written written
	Logged  int64
	CPU     time.Duration // of the agent
}

// written is how many bytes processes have handed to the medium, each with the
// children that it has buried, and what the device under it was given.
type written struct {
	Agent int64
	Shims int64 // those that run; an update may replace them
	Syncs int64 // calls of fsync and the like, of all of them and of containers
	wear
}

// wear is what a device was given.
type wear struct {
	Device  int64 // bytes
	Writes  int64
	Flushes int64
}

func (w written) since(before written) written {
	return written{
		w.Agent - before.Agent, max(0, w.Shims-before.Shims), w.Syncs - before.Syncs, // a shim that has ended took its count with it
		wear{w.Device - before.Device, w.Writes - before.Writes, w.Flushes - before.Flushes},
	}
}

func (w written) each(n int) written {
	of := int64(n)
	return written{w.Agent / of, w.Shims / of, w.Syncs / of, wear{w.Device / of, w.Writes / of, w.Flushes / of}}
}

// median is the middle value, or the upper one of the two.
func median[T int64 | time.Duration](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}
