package git

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
)

// Reason is why the desired state is unavailable, in the form of the fix for people.
type Reason string

// Reasons on the device.
const (
	// NoProgram: there is no git program, or it cannot speak https.
	NoProgram Reason = "install git with HTTPS support (on OpenWrt the packages git and git-http)"
	TooOld    Reason = "install git 2.31 or newer" // see minMajor
	NoToken   Reason = "put the access token into the file named by wfm.git.token, readable by margolite's user"
	// Local: the work folder cannot be used.
	Local Reason = "make the state directory writable, and free some space"
)

// Reasons on the server or on the way to it.
const (
	// Unreachable: no answer, or an incomplete one.
	Unreachable Reason = "check the network and wfm.url"
	// Untrusted: no TLS connection to the right server.
	Untrusted Reason = "check this device's clock, and that wfm.ca holds the CA of the server's certificate"
	// Unauthorized: the token is rejected, or not valid for this repository.
	Unauthorized Reason = "use an access token that can read the repository"
	// NoRepository: no repository at the URL that this token may see.
	NoRepository Reason = "correct wfm.url, or let the access token read the repository"
	Redirected   Reason = "correct wfm.url: redirects are not followed"
	NoBranch     Reason = "correct wfm.git.branch, or create the branch"
	NoFolder     Reason = "correct wfm.git.path; to have no deployments, delete the last document and keep some other file in the repository"
	// Rejected: the server refuses the push.
	Rejected Reason = "let the access token push to the branch named by wfm.git.report"
)

// Error is a failure to get the desired state.
type Error struct {
	Reason Reason
	Op     string // what was tried, e.g. "ask for branch main of https://git.example/gw.git"
	Err    error
}

func (e *Error) Error() string { return "cannot " + e.Op + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Mend returns how to fix it, for people.
func (e *Error) Mend() string { return string(e.Reason) }

// Answered reports that the right server was reached but its answer is unusable.
func (e *Error) Answered() bool {
	switch e.Reason {
	case Unauthorized, NoRepository, Redirected, NoBranch, NoFolder, Rejected:
		return true
	}
	return false
}

// Retry reports whether to ask again soon, as wfm.Retry. Git gives no time to wait.
func (e *Error) Retry() (retryable bool, after time.Duration) {
	return (e.Reason == Unreachable || e.Reason == Untrusted) && !errors.Is(e.Err, context.Canceled), 0
}

var errBroken = errors.New("the local copy of the repository is damaged")

func refused(path, format string, args ...any) error {
	return margo.Errors{{Path: margo.Shown(path, 200), Message: fmt.Sprintf(format, args...)}}
}

// isRefusal reports that an error is about the content, so that a retry would fail alike.
func isRefusal(err error) bool {
	var violations margo.Errors
	return errors.As(err, &violations) || errors.Is(err, wfm.ErrTooLarge)
}

// Messages of git and libcurl in the locale C; the first match decides.
var meanings = []struct {
	text   string
	reason Reason
}{
	{"unable to find remote helper", NoProgram},
	{"'remote-https' is not a git command", NoProgram},
	{"terminal prompts disabled", Unauthorized}, // the server requires authentication
	{"could not read Username", Unauthorized},
	{"could not read Password", Unauthorized},
	{"Authentication failed", Unauthorized},
	{"requested URL returned error: 401", Unauthorized},
	{"requested URL returned error: 403", Unauthorized},
	{"requested URL returned error: 404", NoRepository},
	{"requested URL returned error: 410", NoRepository},
	{"requested URL returned error: 3", Redirected},
	{"unable to update url base from redirection", Redirected},
	{"fatal: repository '", NoRepository}, // ' not found
	{"dumb http transport", NoRepository}, // plain files without a Git server
	{"couldn't find remote ref", NoBranch},
	{"certificate", Untrusted}, // in the messages of OpenSSL, GnuTLS and mbed TLS
	{"ca cert file", Untrusted},
	{"client cert", Untrusted},
	{"SSL CA cert", Untrusted},
	{"trust anchors", Untrusted},
	{"unable to access", Unreachable},
	{"No space left on device", Local},
	{"Read-only file system", Local},
	{"RPC failed", Unreachable},
	{"hung up", Unreachable},
	{"unexpected disconnect", Unreachable},
	{"early EOF", Unreachable},
	{"protocol error", Unreachable},
	{"expected ", Unreachable},
	{"invalid index-pack output", Unreachable}, // a pack damaged in transfer
}

// maxShown bounds, in bytes, the shown end of git's output, where the cause usually is.
const maxShown = 300

type exitError struct {
	status string // "exit status 128"
	stderr string
	secret []string // not to be shown
}

func (e *exitError) Error() string {
	text := e.stderr
	for _, s := range e.secret {
		if s != "" {
			text = strings.ReplaceAll(text, s, "***")
		}
	}
	if text = margo.Line(text); text == "" {
		return "git: " + e.status
	}
	if over := len(text) - maxShown; over > 0 {
		text = "..." + strings.ToValidUTF8(text[over:], "")
	}
	return "git: " + text
}

// own returns git's own messages, without the server's and without URLs, whose words mislead.
func (e *exitError) own() string {
	var b strings.Builder
	for line := range strings.Lines(e.stderr) {
		if !strings.HasPrefix(line, "remote: ") {
			b.WriteString(line)
		}
	}
	text := b.String()
	for {
		before, rest, found := strings.Cut(text, "'https://")
		_, after, ends := strings.Cut(rest, "'")
		if !found || !ends {
			return text
		}
		text = before + "''" + after
	}
}

// explain turns git's failure to talk to the server into an *Error or an error about the content.
// Unknown failures have the reason other.
func explain(op string, err error, other Reason) error {
	if _, known := errors.AsType[*Error](err); known || errors.Is(err, context.Canceled) {
		return err
	}
	var exit *exitError
	if !errors.As(err, &exit) {
		if errors.Is(err, errSlow) || errors.Is(err, context.DeadlineExceeded) {
			other = Unreachable
		}
		return &Error{other, op, err}
	}
	text := exit.own()
	for _, sign := range []string{"died of signal 25", "File too large", "ut of memory"} {
		if strings.Contains(text, sign) {
			return fmt.Errorf("cannot %s: %w: %w", op, wfm.ErrTooLarge, exit)
		}
	}
	if strings.Contains(text, "fsck error") || strings.Contains(text, "refusing to accept") {
		return fmt.Errorf("cannot %s: %w", op, margo.Errors{{Path: "repository", Message: "is corrupt: " + exit.Error()}})
	}
	for _, m := range meanings {
		if strings.Contains(text, m.text) {
			return &Error{m.reason, op, exit}
		}
	}
	return &Error{other, op, exit}
}
