package control

import (
	"os"
	"strconv"
	"time"
)

// Pending is a waiting or rejected change: its effects, as far as staged, and why it waits.
type Pending struct {
	Kind     string `json:"kind"`             // install, update or remove
	Revision string `json:"revision"`         // names the change in an answer: digest of the document that it leads to or, for a removal, away from
	Answer   string `json:"answer,omitempty"` // approved or rejected; absent: none yet
	// Reasons are what it waits for: approval, window, lock, clock, hook.
	Reasons []Reason  `json:"reasons,omitempty"`
	Until   time.Time `json:"until,omitzero"` // when it may proceed by itself, if time decides
	// Services are the changing ones; absent until it is staged.
	Services   []ServiceChange `json:"services,omitempty"`
	Parameters []ValueChange   `json:"parameters,omitempty"`
	Cut        bool            `json:"cut,omitempty"` // the lists are incomplete
}

// Reason is why a change waits.
type Reason struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// Hidden replaces a value in a ValueChange that may be a secret.
const Hidden = "(changed)"

// ServiceChange is the change of one service.
type ServiceChange struct {
	Component string `json:"component"`
	Service   string `json:"service"`
	Change    string `json:"change"` // added, removed, changed
	// Image is set if it changes, or the service is added or removed.
	Image *ImageChange `json:"image,omitempty"`
	// Further changes: what is removed and added, in the terms of a Compose file.
	Environment []ValueChange `json:"environment,omitempty"`
	Ports       *ListChange   `json:"ports,omitempty"`
	Volumes     *ListChange   `json:"volumes,omitempty"`
	Privileges  *ListChange   `json:"privileges,omitempty"` // such as privileged, cap_add SYS_TIME, device /dev/ttyS0, network host
	// Other names further changed keys of the service, such as command.
	Other []string `json:"other,omitempty"`
}

// ImageChange is an image and its replacement; empty for none.
type ImageChange struct {
	From       string `json:"from,omitempty"`
	To         string `json:"to,omitempty"`
	FromDigest string `json:"fromDigest,omitempty"`
	ToDigest   string `json:"toDigest,omitempty"`
	Bytes      int64  `json:"bytes,omitempty"` // of To, compressed
}

// ValueChange is a named value and its replacement; nil for none.
type ValueChange struct {
	Name string  `json:"name"`
	From *string `json:"from,omitempty"`
	To   *string `json:"to,omitempty"`
}

// ListChange is what is removed from a list and added to it.
type ListChange struct {
	Removed []string `json:"removed,omitempty"`
	Added   []string `json:"added,omitempty"`
}

// Lock is a held update lock.
type Lock struct {
	Holder     string    `json:"holder"`
	Reason     string    `json:"reason,omitempty"`
	Deployment string    `json:"deployment,omitempty"` // absent: all
	By         string    `json:"by,omitempty"`         // the user who took it; absent for a lock file
	Since      time.Time `json:"since,omitzero"`
	Until      time.Time `json:"until,omitzero"` // absent: until it is released
	// File is a workload's lock file; absent for a hold.
	File string `json:"file,omitempty"`
}

// Caller is the process at the other end of the socket, as the kernel reports it.
type Caller struct {
	UID uint32
	PID int32
	// User is the user's name, if the system knows it.
	User string
}

// Privileged reports whether the caller has the rights of the agent's own user.
func (c Caller) Privileged() bool { return c.UID == 0 || int64(c.UID) == int64(os.Geteuid()) }

// String returns the caller for journal and log, such as "user operator (1000)".
func (c Caller) String() string {
	id := strconv.FormatUint(uint64(c.UID), 10)
	if c.User == "" {
		return "user " + id
	}
	return "user " + c.User + " (" + id + ")"
}

// AnswerRequest approves or rejects one change.
type AnswerRequest struct {
	Deployment string `json:"deployment"`
	Revision   string `json:"revision"`         // Pending.Revision
	Reason     string `json:"reason,omitempty"` // for people
	Caller     Caller `json:"-"`
}

// HoldRequest takes or extends an update lock.
type HoldRequest struct {
	Holder     string `json:"holder,omitempty"` // default: the user
	Reason     string `json:"reason,omitempty"`
	Deployment string `json:"deployment,omitempty"`
	Seconds    int64  `json:"seconds,omitempty"` // 0: until it is released
	Caller     Caller `json:"-"`
}

// ReleaseRequest releases locks.
type ReleaseRequest struct {
	Holder string `json:"holder,omitempty"` // default: the user
	All    bool   `json:"all,omitempty"`    // those of all holders
	Caller Caller `json:"-"`
}

// ReturnRequest returns a deployment to its previous revision.
type ReturnRequest struct {
	Deployment string `json:"deployment"`
	// Revision to go back to; empty: the available one.
	Revision string `json:"revision,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Caller   Caller `json:"-"`
}

// HistoryRequest selects entries of the journal.
type HistoryRequest struct {
	Since      uint64 // sequence to begin with; 0: with the oldest
	Last       int    // at most this many of the newest; 0: all
	Deployment string // empty: all
}

// Entry is one entry of the journal.
type Entry struct {
	Sequence   uint64    `json:"sequence"`
	Time       time.Time `json:"time"`
	Kind       string    `json:"kind"`
	Deployment string    `json:"deployment,omitempty"`
	Revision   string    `json:"revision,omitempty"`
	Version    uint64    `json:"version,omitempty"`
	By         string    `json:"by,omitempty"`
	Text       string    `json:"text,omitempty"`
	Chain      string    `json:"chain"`
}

// Verification is the result of checking the journal's chain.
type Verification struct {
	Entries uint64 `json:"entries"`
	First   uint64 `json:"first"`             // sequence of the oldest kept
	Head    string `json:"head"`              // chain of the newest
	Problem string `json:"problem,omitempty"` // what is wrong; absent: nothing
}
