package control

import "time"

// Status is the document of GET /v1/status and of `margolite status --json`. It is stable: members
// are added, never renamed or removed.
type Status struct {
	Device string      `json:"device"`
	Agent  AgentStatus `json:"agent"`
	WFM    WFMStatus   `json:"wfm"`
	// Identity is how the WFM knows this device.
	Identity    IdentityStatus `json:"identity,omitzero"`
	Manifest    *Manifest      `json:"manifest,omitempty"` // absent before the first one was accepted
	Outbox      int            `json:"outbox"`             // status reports that the WFM has not acknowledged yet
	Locks       []Lock         `json:"locks,omitempty"`    // update locks that are held
	Deployments []Deployment   `json:"deployments"`
	// Damage is the last damage of the agent's own records.
	Damage *Damage `json:"damage,omitempty"`
	// RuntimeError is why services are missing: the runtime does not answer.
	RuntimeError string `json:"runtimeError,omitempty"`
	// SelfCheck is the agent's view of its own state.
	SelfCheck *SelfCheck `json:"selfCheck,omitempty"`
}

// SelfCheck is the agent's view of its own state.
type SelfCheck struct {
	OK         bool       `json:"ok"`                 // no problems, the runtime answers, and the clock may be right
	Problems   []Advice   `json:"problems,omitempty"` // what is wrong now, and how to fix it
	Store      StoreCheck `json:"store"`
	Loops      []Loop     `json:"loops"`
	ClockWrong bool       `json:"clockWrong,omitempty"`
	Free       int64      `json:"freeBytes,omitempty"` // on the file system of state.dir
	Panics     int64      `json:"panics"`              // bugs since the start, each of which ended one operation
	LastPanic  *Mistake   `json:"lastPanic,omitempty"` // the last one, else the one that ended an earlier process
	Starts     int        `json:"starts,omitempty"`    // within the last day and since boot, this one included
}

// StoreCheck is the state of the store since the agent started.
type StoreCheck struct {
	Size      int64     `json:"bytes"`
	Commits   int64     `json:"commits"`
	LastWrite time.Time `json:"lastWrite,omitzero"`  // when it was last tried
	LastError string    `json:"lastError,omitempty"` // of that write; empty: it succeeded
}

// Loop is a part of the agent that runs as long as the agent.
type Loop struct {
	Name  string  `json:"name"`
	Busy  float64 `json:"busySeconds"` // since its last progress; 0 while it is idle
	Stuck bool    `json:"stuck,omitempty"`
}

// Mistake is a panic.
type Mistake struct {
	Time   time.Time `json:"time"`
	Object string    `json:"object"` // what was being done
	Text   string    `json:"text"`
}

// Damage describes damaged records, for 30 days or until the file with them is deleted.
type Damage struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
	Kept string    `json:"kept,omitempty"` // name of that file in state.dir; absent: none
}

// AgentStatus identifies the answering program.
type AgentStatus struct {
	Version string    `json:"version"`
	Commit  string    `json:"commit,omitempty"`
	Started time.Time `json:"started"`
}

// WFMStatus is the state of the connection to the Workload Fleet Manager.
type WFMStatus struct {
	URL         string    `json:"url"`
	Identity    string    `json:"identity,omitempty"` // the publisher of accepted manifests: a SPIFFE ID or a URL
	Reachable   bool      `json:"reachable"`          // the last request was answered
	LastPoll    time.Time `json:"lastPoll,omitzero"`  // when the last poll ended
	LastContact time.Time `json:"lastContact,omitzero"`
	NextPoll    time.Time `json:"nextPoll,omitzero"`
	LastError   string    `json:"lastError,omitempty"` // of the last poll; empty when it succeeded
	Refused     string    `json:"refused,omitempty"`   // why the manifest that the WFM publishes now was refused

	// RefusedManifest is that manifest if refused only for its version: see RollbackRequest.
	RefusedManifest *RefusedManifest `json:"refusedManifest,omitempty"`

	// Waiting is why: interval, backoff, refused, retired, window, silence or downtime.
	Waiting       string    `json:"waiting,omitempty"`
	SilentUntil   time.Time `json:"silentUntil,omitzero"`   // the WFM asked not to be called before
	ClosedUntil   time.Time `json:"closedUntil,omitzero"`   // no window is open for polls before
	DowntimeUntil time.Time `json:"downtimeUntil,omitzero"` // nothing is sent before
}

// IdentityStatus is how the WFM knows this device, and how long that is valid.
type IdentityStatus struct {
	Client   string    `json:"client,omitempty"`   // SPIFFE ID, or the id assigned by the WFM
	Expires  time.Time `json:"expires,omitzero"`   // of the device's certificate or an intermediate
	Warnings []Advice  `json:"warnings,omitempty"` // what keeps the device offline, or will soon
	// TrustBundle is the fetched one; absent if it is a file.
	TrustBundle *TrustBundleStatus `json:"trustBundle,omitempty"`
}

// Advice is a problem, and how to fix it.
type Advice struct {
	Text string `json:"text"`
	Mend string `json:"mend,omitempty"`
}

// TrustBundleStatus is the state of the identity service's trust bundle.
type TrustBundleStatus struct {
	TrustDomain string    `json:"trustDomain,omitempty"` // absent: none yet
	Anchors     int       `json:"anchors,omitempty"`
	Sequence    uint64    `json:"sequence,omitempty"` // the bundle's own
	Accepted    time.Time `json:"accepted,omitzero"`  // when this one was first fetched
	Checked     time.Time `json:"checked,omitzero"`   // last confirmation by the service since the start
	Next        time.Time `json:"next,omitzero"`      // when the service is asked next
	LastError   string    `json:"lastError,omitempty"`
}

// RefusedManifest has a version not greater than the accepted one; the lists give its effect.
type RefusedManifest struct {
	Since       time.Time `json:"since,omitzero"`     // when this agent first saw such a manifest
	Accepted    uint64    `json:"accepted,omitempty"` // version that is accepted
	Version     uint64    `json:"version"`
	Digest      string    `json:"digest"`
	Deployments []string  `json:"deployments"` // all listed ids; the rest compares them with those on the device
	Added       []string  `json:"added,omitempty"`
	Changed     []string  `json:"changed,omitempty"`
	Removed     []string  `json:"removed,omitempty"`
}

// RollbackRequest accepts a refused manifest, as it was seen.
type RollbackRequest struct {
	Version uint64 `json:"version"`
	Digest  string `json:"digest"`
	UID     uint32 `json:"-"` // of the caller, from the kernel
}

// Manifest is the accepted state manifest.
type Manifest struct {
	Version uint64 `json:"version"`
	ETag    string `json:"etag"`
	Digest  string `json:"digest"`
}

// Deployment is one deployment as this device holds it.
type Deployment struct {
	ID         string      `json:"id"`
	Name       string      `json:"name,omitempty"`
	State      string      `json:"state"` // as reported to the WFM: pending, installing, installed, failed, removing, removed
	Phase      string      `json:"phase"` // the agent's own, finer state
	Reason     string      `json:"reason,omitempty"`
	Error      *Error      `json:"error,omitempty"`
	Digest     string      `json:"digest"`           // of the desired revision
	Active     string      `json:"active,omitempty"` // digest of the revision that runs, if any
	Adopted    uint64      `json:"adoptedManifestVersion"`
	Former     string      `json:"former,omitempty"` // digest of the revision that `rollback` goes back to
	Change     *Pending    `json:"change,omitempty"` // pending or rejected
	Since      time.Time   `json:"since"`
	Reported   *Reported   `json:"reported,omitempty"`
	Unread     []string    `json:"unreadParameters,omitempty"` // parameters of the desired revision that no service reads
	Components []Component `json:"components"`
}

// Reported is the last report of a deployment to the WFM.
type Reported struct {
	State   string    `json:"state,omitempty"` // with At
	At      time.Time `json:"at,omitzero"`     // when the WFM accepted it; absent: not since the agent started
	Waiting int       `json:"waiting"`         // undelivered reports; 0: the WFM knows the present state
}

// Component is one component of a deployment.
type Component struct {
	Name     string    `json:"name"`
	State    string    `json:"state"`
	Error    *Error    `json:"error,omitempty"`
	Project  string    `json:"project,omitempty"` // the Compose project that runs it
	Progress *Progress `json:"progress,omitempty"`
	Services []Service `json:"services,omitempty"`
}

// Progress counts the bytes of a download in progress.
type Progress struct {
	Object string `json:"object"`
	Done   int64  `json:"done"`
	Total  int64  `json:"total"` // 0 when it is not known
}

// Service is one replica of a Compose service, read from the runtime.
type Service struct {
	Project   string   `json:"project,omitempty"`
	Name      string   `json:"name"`
	Number    int      `json:"number"`
	State     string   `json:"state"` // created, running, paused, stopped, done, unresponsive: its shim does not respond
	Container string   `json:"container"`
	Image     string   `json:"image"`
	Address   string   `json:"address,omitempty"`
	Ports     []string `json:"ports,omitempty"` // as 0.0.0.0:8080->80/tcp
	ExitCode  *int     `json:"exitCode,omitempty"`
	Pid       int      `json:"pid,omitempty"`

	ContainerName string    `json:"containerName,omitempty"` // for people
	Started       time.Time `json:"started,omitzero"`        // while it runs
	Ended         time.Time `json:"ended,omitzero"`          // once it ended
	Restarts      int       `json:"restarts,omitempty"`      // since it last ran well
	Health        *Health   `json:"health,omitempty"`        // if it runs and has a health check
	Waiting       string    `json:"waiting,omitempty"`       // what it waits for before it starts
}

// Health is the result of a container's health check.
type Health struct {
	Status   string `json:"status"`             // starting, healthy or unhealthy
	Failures int    `json:"failures,omitempty"` // in a row
	ExitCode int    `json:"exitCode,omitempty"` // of the last check
	Output   string `json:"output,omitempty"`   // of the last check, shortened
	Skipped  string `json:"skipped,omitempty"`  // why the latest check was not run, which is no failure
}

// Error is a failure: a code for programs, the failed object, and a sentence for people.
type Error struct {
	Code    string `json:"code"`
	Source  string `json:"source"`
	Message string `json:"message"`
}

// Event is one event as GET /v1/events streams it, one JSON object per line.
type Event struct {
	Time       time.Time `json:"time"`
	Kind       EventKind `json:"kind"`
	Deployment string    `json:"deployment,omitempty"`
	Component  string    `json:"component,omitempty"`
	Service    string    `json:"service,omitempty"`
	State      string    `json:"state,omitempty"` // of a service.changed: Begun, else empty
	Version    uint64    `json:"version,omitempty"`
	Digest     string    `json:"digest,omitempty"`
	Progress   *Progress `json:"progress,omitempty"`
	Error      *Error    `json:"error,omitempty"`
	Text       string    `json:"text,omitempty"` // for people
}

// EventKind is the kind of an Event.
type EventKind string

// The kinds of events.
const (
	ManifestAccepted  EventKind = "manifest.accepted"
	ManifestRefused   EventKind = "manifest.refused"
	RollbackAccepted  EventKind = "manifest.rollback"
	DocumentVerified  EventKind = "document.verified"
	PackageVerified   EventKind = "package.verified"
	Transfer          EventKind = "transfer"
	DeploymentChanged EventKind = "deployment.changed"
	ChangeWaits       EventKind = "change.waits"    // Text has the reasons
	ChangeApproved    EventKind = "change.approved" // Text names the user, as for the next four
	ChangeRejected    EventKind = "change.rejected"
	LockTaken         EventKind = "lock.taken"
	LockReleased      EventKind = "lock.released" // or expired
	RollbackAsked     EventKind = "rollback.asked"
	ServiceChanged    EventKind = "service.changed"
	ReportDelivered   EventKind = "report.delivered"
	PollFailed        EventKind = "poll.failed"
	Warning           EventKind = "warning"
	PollSucceeded     EventKind = "poll.succeeded"
	Done              EventKind = "done" // closes a request that streams
)

// Begun is the State of an event of kind ServiceChanged about the next action; only the caller that
// requested a Compose project receives it.
const Begun = "begun"
