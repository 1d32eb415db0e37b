// Package policy answers whether a change may happen now, and if not, why and
// until when. It owns the decision and nothing else: it reads no file, no clock
// and no network, and knows neither the WFM nor the runtime. The same question
// always has the same answer. Only reading a window looks its time zone up, in
// the system's database.
package policy

import "time"

// ChangeKind is what a change does to a deployment.
type ChangeKind string

// The kinds of change.
const (
	Install ChangeKind = "install"
	Update  ChangeKind = "update"
	Remove  ChangeKind = "remove"
)

// Change is one change to one deployment.
type Change struct {
	Deployment string
	Kind       ChangeKind
}

// Reason is why a change has to wait: Code for programs, Text for people.
type Reason struct {
	Code, Text string
}

// Verdict is the answer for one change.
type Verdict struct {
	// Go says that the change may be applied now.
	Go bool
	// Reason is set when the change has to wait.
	Reason Reason
	// Until is when to ask again. Zero: it does not depend on the time.
	Until time.Time
}

// Options are the rules of a Gate. There are none yet: the gate is open.
type Options struct{}

// Gate decides about changes. It is immutable and may be used concurrently.
type Gate struct{}

// New makes a gate of rules.
func New(Options) (*Gate, error) {
	return &Gate{}, nil
}

// Decide says whether c may be applied at the time now.
func (g *Gate) Decide(c Change, now time.Time) Verdict {
	return Verdict{Go: true}
}
