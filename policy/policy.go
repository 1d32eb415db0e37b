// Package policy decides whether a change may happen now, and if not, why and until when; and what
// a workload may ask of the device. It owns the decisions and nothing else: it reads no file, clock
// or network, and knows neither the WFM nor the runtime. The same question always has the same
// answer. Only parsing a window looks up its time zone in the system's database. Struct tags are
// for the package that reads the site's configuration.
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

// Answer is the site's decision on a change.
type Answer string

// The answers.
const (
	Unanswered Answer = ""
	Approved   Answer = "approved"
	Rejected   Answer = "rejected"
)

// Change is one change to one deployment.
type Change struct {
	Deployment string
	Labels     []map[string]string // of each document involved; all must let it pass
	Kind       ChangeKind
	Answer     Answer
}

// Lock holds up changes while a machine must not be disturbed. It expires at Until; while the clock
// is wrong, the caller decides which locks it lists.
type Lock struct {
	Holder     string
	Reason     string    // for people; may be empty
	Deployment string    // the one it holds up; empty: all
	Until      time.Time // zero: until it is released
}

// Situation is the input of decisions besides the rules.
type Situation struct {
	Now        time.Time // in the device's time zone, which texts use
	ClockWrong bool      // Now cannot be trusted
	Locks      []Lock    // currently held
	// Before is the deployment that must change first in manifest order; empty: none.
	Before string
}

// ReasonCode tells programs why a change waits.
type ReasonCode string

// The reasons to wait.
const (
	WaitsForApproval ReasonCode = "approval"
	WaitsForWindow   ReasonCode = "window"
	WaitsForLock     ReasonCode = "lock"
	WaitsForClock    ReasonCode = "clock"
	WaitsForHook     ReasonCode = "hook"
	WaitsForTurn     ReasonCode = "turn"
)

// Reason is why a change waits: Code for programs, Text for people; String combines them.
type Reason struct {
	Code ReasonCode
	Text string
}

func (r Reason) String() string { return "waits for " + string(r.Code) + ": " + r.Text }

// Verdict is the decision on one change.
type Verdict struct {
	// Go: the change may be applied now.
	Go bool
	// Rejected: the site rejected the change, so it never may be.
	Rejected bool
	// Reasons are all reasons to wait.
	Reasons []Reason
	// Until is when the first reason may end by itself, to ask again; zero: none does.
	Until time.Time
}

// Approval selects the changes that need approval.
type Approval string

// The approval rules. An update is any change of what runs, including removal.
const (
	ApproveNone    Approval = "none"
	ApproveUpdates Approval = "updates"
	ApproveAll     Approval = "all"
)

// Rollback is what happens after a failed update.
type Rollback string

// The rollback rules.
const (
	RollbackAuto   Rollback = "auto"   // return to the last working revision automatically
	RollbackManual Rollback = "manual" // return to it on request
	RollbackOff    Rollback = "off"    // never return to it, and do not keep it
)

// Hook is a program of the site that is asked before a change.
type Hook struct {
	Command []string      `yaml:"command" is:"argument" most:"64" all:"command"` // absolute path and arguments; empty: none
	Timeout time.Duration `yaml:"timeout" least:"1s" most:"1h"`                  // 0: HookTimeout
}

// HookTimeout is the default time limit of a hook.
const HookTimeout = 30 * time.Second

// Rules apply to the changes of one deployment. The zero value lets everything pass.
type Rules struct {
	Approval Approval `yaml:"approval" one:"none updates all"` // empty: ApproveNone
	Windows  Windows  `yaml:"windows" most:"64"`               // when changes may be applied; none: at any time
	Rollback Rollback `yaml:"rollback" one:"auto manual off"`  // empty: RollbackAuto
	Hook     Hook     `yaml:"hook"`
}

// Order is the order in which deployments are changed.
type Order string

// The orders.
const (
	OrderNone Order = "none" // each as soon as possible
	// OrderManifest: one after another in manifest order, each when those before it are settled or
	// have failed. Removals do not take part.
	OrderManifest Order = "manifest"
)

// Override replaces rules for some deployments. If several match, the first that sets a rule wins.
type Override struct {
	Deployments []string          `yaml:"deployments" is:"deployment" most:"256"` // ids, compared without regard to case; empty: any, if there are Labels
	Labels      map[string]string `yaml:"labels" names:"word" is:"line"`          // all must match exactly; empty: any, if there are Deployments

	Approval Approval `yaml:"approval" one:"none updates all"` // empty: not replaced, like the others
	Windows  Windows  `yaml:"windows" most:"64" empty:"kept"`  // nil: not replaced; empty: at any time
	Rollback Rollback `yaml:"rollback" one:"auto manual off"`
	Hook     *Hook    `yaml:"hook"`
}
