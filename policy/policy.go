// Package policy answers whether a change may happen now, and if not, why and
// until when; and what a workload may ask of the device. It owns the decisions
// and nothing else: it reads no file, no clock and no network, and knows neither
// the WFM nor the runtime. The same question always has the same answer. Only
// reading a window looks its time zone up, in the system's database. The tags of
// what a site decides are for the package that reads its configuration.
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

// Answer is what the site has said about a change.
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
	Labels     []map[string]string // of the documents that it is about; each has to let it pass
	Kind       ChangeKind
	Answer     Answer
}

// Lock keeps changes away while a machine must not be disturbed. One whose
// Until has come holds nothing any more, unless the clock is wrong: those who
// list it then know better.
type Lock struct {
	Holder     string
	Reason     string    // for people; may be empty
	Deployment string    // the one that it is about; empty: all
	Until      time.Time // zero: until it is released
}

// Situation is what decisions depend on beside the rules.
type Situation struct {
	Now        time.Time // in the time zone of the device: texts name hours of it
	ClockWrong bool      // Now is not to be trusted: the hours of the day are not known
	Locks      []Lock    // that are held now
	// Before is the deployment whose change comes before this one in the order of the
	// manifest; empty: this one is next.
	Before string
}

// ReasonCode says for programs why a change waits.
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

// Reason is why a change has to wait: Code for programs, Text for people. Text does
// not repeat what Code says; String has both.
type Reason struct {
	Code ReasonCode
	Text string
}

func (r Reason) String() string { return "waits for " + string(r.Code) + ": " + r.Text }

// Verdict is the answer for one change.
type Verdict struct {
	// Go says that the change may be applied now.
	Go bool
	// Rejected says that it may never be: the site has said no.
	Rejected bool
	// Reasons are all that the change has to wait for; empty otherwise.
	Reasons []Reason
	// Until is when to ask again: the earliest time at which one of the reasons
	// ends by itself. Zero: none of them does.
	Until time.Time
}

// Approval says which changes need an answer of the site.
type Approval string

// The approval rules. An update is whatever changes what runs: removal, too.
const (
	ApproveNone    Approval = "none"
	ApproveUpdates Approval = "updates"
	ApproveAll     Approval = "all"
)

// Rollback says what becomes of an update that failed.
type Rollback string

// The rollback rules.
const (
	RollbackAuto   Rollback = "auto"   // the revision that worked last comes back by itself
	RollbackManual Rollback = "manual" // it comes back when somebody asks for it
	RollbackOff    Rollback = "off"    // it does not come back, and is not kept
)

// Hook is a program of the site that is asked before a change.
type Hook struct {
	Command []string      `yaml:"command" is:"argument" most:"64" all:"command"` // absolute path and arguments; empty: none
	Timeout time.Duration `yaml:"timeout" least:"1s" most:"1h"`                  // 0: HookTimeout
}

// HookTimeout is how long a hook may take where nothing else is said.
const HookTimeout = 30 * time.Second

// Rules are what holds for the changes of one deployment. The zero value lets
// everything pass.
type Rules struct {
	Approval Approval `yaml:"approval" one:"none updates all"` // empty: ApproveNone
	Windows  Windows  `yaml:"windows" most:"64"`               // when changes may be applied; none: at any time
	Rollback Rollback `yaml:"rollback" one:"auto manual off"`  // empty: RollbackAuto
	Hook     Hook     `yaml:"hook"`
}

// Order says in which order deployments are changed.
type Order string

// The orders.
const (
	OrderNone Order = "none" // each as soon as it may be
	// OrderManifest: one after another, as the manifest lists them, each when those
	// before it are settled or have failed. Removals do not take part.
	OrderManifest Order = "manifest"
)

// Override replaces rules for some deployments. Of several that fit, each rule
// is that of the first which sets it.
type Override struct {
	Deployments []string          `yaml:"deployments" is:"deployment" most:"256"` // ids, compared without regard to case; empty: any, where there are Labels
	Labels      map[string]string `yaml:"labels" names:"word" is:"line"`          // all of them, as they are written; empty: any, where there are Deployments

	Approval Approval `yaml:"approval" one:"none updates all"` // empty: not replaced, like the others
	Windows  Windows  `yaml:"windows" most:"64" empty:"kept"`  // nil; not nil but empty: at any time
	Rollback Rollback `yaml:"rollback" one:"auto manual off"`
	Hook     *Hook    `yaml:"hook"`
}
