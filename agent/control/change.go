package control

import (
	"os"
	"strconv"
	"time"
)

// Pending is a change that waits, or that the site has rejected: what it does to
// the device, as far as it is staged, and why it waits.
type Pending struct {
	Kind     string `json:"kind"`             // install, update or remove
	Revision string `json:"revision"`         // what an answer names: the digest of the document that it leads to, or, of a removal, away from
	Answer   string `json:"answer,omitempty"` // approved or rejected; absent: none was given
	// Reasons are what it waits for: approval, window, lock, clock, hook.
	Reasons []Reason  `json:"reasons,omitempty"`
	Until   time.Time `json:"until,omitzero"` // when it may go by itself, where the time decides
	// Services are those that change; absent while it is not staged.
	Services   []ServiceChange `json:"services,omitempty"`
	Parameters []ValueChange   `json:"parameters,omitempty"`
	Cut        bool            `json:"cut,omitempty"` // more changes than these lists have room for
}

// Reason is why a change waits.
type Reason struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// Hidden stands in a ValueChange for a value that may be a secret.
const Hidden = "(changed)"

// ServiceChange is what becomes of one service.
type ServiceChange struct {
	Component string `json:"component"`
	Service   string `json:"service"`
	Change    string `json:"change"` // added, removed, changed
	// Image is set where it changes, and where the service comes or goes.
	Image *ImageChange `json:"image,omitempty"`
	// What else changes: lists of what goes and what comes, in the words of a
	// Compose file.
	Environment []ValueChange `json:"environment,omitempty"`
	Ports       *ListChange   `json:"ports,omitempty"`
	Volumes     *ListChange   `json:"volumes,omitempty"`
	Privileges  *ListChange   `json:"privileges,omitempty"` // as privileged, cap_add SYS_TIME, device /dev/ttyS0, network host
	// Other names further keys of the service that change, as command.
	Other []string `json:"other,omitempty"`
}

// ImageChange is an image and what it is replaced by; empty where there is none.
type ImageChange struct {
	From       string `json:"from,omitempty"`
	To         string `json:"to,omitempty"`
	FromDigest string `json:"fromDigest,omitempty"`
	ToDigest   string `json:"toDigest,omitempty"`
	Bytes      int64  `json:"bytes,omitempty"` // of To, compressed
}

// ValueChange is a named value and what it is replaced by; nil where there is none.
type ValueChange struct {
	Name string  `json:"name"`
	From *string `json:"from,omitempty"`
	To   *string `json:"to,omitempty"`
}

// ListChange is what goes from a list and what comes to it.
type ListChange struct {
	Removed []string `json:"removed,omitempty"`
	Added   []string `json:"added,omitempty"`
}

// Lock is an update lock that is held.
type Lock struct {
	Holder     string    `json:"holder"`
	Reason     string    `json:"reason,omitempty"`
	Deployment string    `json:"deployment,omitempty"` // absent: it is about all
	By         string    `json:"by,omitempty"`         // the user who took it; absent for a lock file
	Since      time.Time `json:"since,omitzero"`
	Until      time.Time `json:"until,omitzero"` // absent: until it is released
	// File is the lock file that a workload holds; absent for a hold.
	File string `json:"file,omitempty"`
}

// Caller is who asks, as the kernel reports the other end of the socket.
type Caller struct {
	UID uint32
	PID int32
	// User is the name of the user, where the system knows it.
	User string
}

// Privileged says whether the caller may do what the agent's own user may do.
func (c Caller) Privileged() bool { return c.UID == 0 || int64(c.UID) == int64(os.Geteuid()) }

// String names the caller in journal and log, as "user operator (1000)".
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
	Revision   string `json:"revision"`         // as Pending has it
	Reason     string `json:"reason,omitempty"` // for people
	Caller     Caller `json:"-"`
}

// HoldRequest takes or prolongs an update lock.
type HoldRequest struct {
	Holder     string `json:"holder,omitempty"` // default: the user
	Reason     string `json:"reason,omitempty"`
	Deployment string `json:"deployment,omitempty"`
	Seconds    int64  `json:"seconds,omitempty"` // 0: until it is released
	Caller     Caller `json:"-"`
}

// ReleaseRequest gives a lock back.
type ReleaseRequest struct {
	Holder string `json:"holder,omitempty"` // default: the user
	All    bool   `json:"all,omitempty"`    // those of all holders
	Caller Caller `json:"-"`
}

// ReturnRequest brings a deployment back to the revision before.
type ReturnRequest struct {
	Deployment string `json:"deployment"`
	// Revision is the one to go back to; empty: whichever there is.
	Revision string `json:"revision,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Caller   Caller `json:"-"`
}

// HistoryRequest selects entries of the journal.
type HistoryRequest struct {
	Since      uint64 // sequence to begin with; 0: with the oldest
	Last       int    // only so many of the newest; 0: all
	Deployment string // only those about this one
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

// Verification is what came of checking the journal's chain.
type Verification struct {
	Entries uint64 `json:"entries"`
	First   uint64 `json:"first"`             // sequence of the oldest that is kept
	Head    string `json:"head"`              // chain of the newest
	Problem string `json:"problem,omitempty"` // what is wrong; absent: nothing
}
