package main

import (
	"slices"
	"time"
)

// device is what was measured of one flavour.
type device struct {
	Flavour    string    `json:"flavour"`
	Version    string    `json:"version"`
	Containerd string    `json:"containerd"`
	External   bool      `json:"external"`
	Counted    bool      `json:"deviceBytesCounted"`
	Idle       []holding `json:"idle"` // nothing is deployed
	Demo       []holding `json:"demo"` // the application of two services runs
	Install    install   `json:"install"`
	Updates    []updates `json:"updates"`
	Polls      polls     `json:"polls"`
}

// holding is the memory of one kind of process, the median of the samples.
type holding struct {
	What      string `json:"what"`
	Processes int    `json:"processes"`
	memory
}

// install is the first installation, with everything still to be pulled.
type install struct {
	Took       time.Duration `json:"tookNs"`
	ImageBytes int64         `json:"imageBytes"`
	Written    written       `json:"writtenBytes"`
	PeakRSS    int64         `json:"peakRss"` // of the agent since its start
}

// updates are parameter changes, each recreating one of the two services.
type updates struct {
	Settle  time.Duration `json:"settleNs"`
	Median  time.Duration `json:"medianNs"`
	Max     time.Duration `json:"maxNs"`
	Written written       `json:"writtenBytesEach"`
}

// polls are polls that bring nothing.
type polls struct {
	Count   int           `json:"count"`
	Written written       `json:"writtenBytes"`
	Logged  int64         `json:"loggedBytes"`
	CPU     time.Duration `json:"cpuNs"` // of the agent
}

// written is how many bytes processes have handed to the medium, each with the
// children that it has buried, and how many the device under it was given.
type written struct {
	Agent      int64 `json:"agent"`
	Containerd int64 `json:"containerd"` // if it is external
	Shims      int64 `json:"shims"`      // those that run; an update may replace them
	Device     int64 `json:"device"`
}

func (w written) since(before written) written {
	return written{w.Agent - before.Agent, w.Containerd - before.Containerd, max(0, w.Shims-before.Shims), w.Device - before.Device}
}

func (w written) plus(o written) written {
	return written{w.Agent + o.Agent, w.Containerd + o.Containerd, w.Shims + o.Shims, w.Device + o.Device}
}

func (w written) each(n int) written {
	return written{w.Agent / int64(n), w.Containerd / int64(n), w.Shims / int64(n), w.Device / int64(n)}
}

// median is the middle value, or the upper one of the two.
func median[T int64 | time.Duration](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}
