package git

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/margo"
)

// Reports carries the current state back into the repository (ST-19): the statuses
// and the capabilities of a device, as documents in a folder of a branch.
//
// The folder is this device's alone, and whatever else is on the branch belongs to
// others: each commit has the branch as the server has it, with the folder as it was
// reported last and one document that is new. So commits of others, a history that is
// rewritten and a branch that is gone lose nothing. Each report is a commit; one whose
// push was accepted without a word of it reaching the device is found on the branch,
// and not repeated.
//
// It is safe for concurrent use, and the only one that may use its work folder.
type Reports struct {
	source *Source // of the branch with the reports
	author string
}

// maxLoose is how many files of objects commits may leave in the copy before it is made
// anew: nothing else removes them. A commit consists of four objects: the document, two folders and the commit.
const maxLoose = 512

// maxIndex bounds what git writes into one file for a commit.
const maxIndex = 64 << 20

// attempts is how often a push is tried that somebody else's came before.
const attempts = 4

var errOvertaken = errors.New("the branch has moved on")

// NewReports makes a way to report by commits of author; nothing is asked or written
// yet. The options are those of the repository, with the branch and the folder for
// reports and a work folder of their own.
func NewReports(o Options, author string) (*Reports, error) {
	source, err := New(o)
	if err != nil {
		return nil, err
	}
	return &Reports{source: source, author: author}, nil
}

// Scope names where the reports are.
func (r *Reports) Scope() string { return r.source.Scope() }

// Reach asks whether the server has the branch, which begins with the first report.
func (r *Reports) Reach(ctx context.Context) error {
	_, err := r.source.Tip(ctx)
	var known *Error
	if errors.As(err, &known) && known.Reason == NoBranch {
		return nil
	}
	return err
}

// PostStatus reports the state of a deployment. The body is margo.Status as
// marshalled. The document of a deployment that was removed goes with that report.
func (r *Reports) PostStatus(ctx context.Context, deploymentID string, body []byte) error {
	status, err := margo.ParseStatus(body)
	if err != nil {
		return fmt.Errorf("cannot report the status of deployment %s: %w", deploymentID, err)
	}
	subject := fmt.Sprintf("Deployment %s: %s", clean(deploymentID, 80), status.State)
	if status.Error != nil {
		subject += ", " + clean(status.Error.Code, 80)
	}
	name := "deployments/" + url.PathEscape(deploymentID) + ".json"
	if status.State == margo.Removed {
		body = nil
	}
	return r.commit(ctx, subject, name, body)
}

const capabilitiesName = "capabilities.json"

// PutCapabilities reports what the device offers.
func (r *Reports) PutCapabilities(ctx context.Context, deviceID string, body []byte) error {
	return r.commit(ctx, "Capabilities of device "+deviceID, capabilitiesName, body)
}

// DeleteCapabilities tells that the device is no longer there.
func (r *Reports) DeleteCapabilities(ctx context.Context, deviceID string) error {
	return r.commit(ctx, "Device "+deviceID+" is gone", capabilitiesName, nil)
}

// commit makes one document what body is, in JSON; nil: there is none any more.
func (r *Reports) commit(ctx context.Context, subject, name string, body []byte) error {
	s := r.source
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, commitTime, errSlow)
	defer cancel()
	a, err := s.begin(ctx)
	if err != nil {
		return err
	}
	if body != nil {
		var text bytes.Buffer
		if err := json.Indent(&text, body, "", "  "); err != nil {
			return fmt.Errorf("cannot report %q: %w", subject, err)
		}
		text.WriteByte('\n')
		body = text.Bytes()
	}
	loose, _ := fs.Glob(os.DirFS(s.copyDir()), "objects/??/*") // none where there is no copy
	if len(loose) >= maxLoose {
		if err := s.discard(); err != nil {
			return err
		}
	}
	last := s.held(ctx) // that was reported last
	base := last
	for n := range attempts {
		if base == "" || n > 0 {
			if base, err = r.branch(ctx, a); err != nil {
				return err
			}
		}
		err = r.push(ctx, a, report{base: base, last: last, subject: subject, name: path.Join(s.folder, name), body: body})
		if !errors.Is(err, errOvertaken) {
			return err
		}
	}
	return &Error{Unreachable, "push to branch " + s.options.Branch + " of " + s.url, err}
}

// branch gives the commit that the server has, which the copy then holds; empty: there
// is no branch yet, or no longer.
func (r *Reports) branch(ctx context.Context, a access) (string, error) {
	s := r.source
	tip, err := s.tip(ctx, a)
	var known *Error
	if errors.As(err, &known) && known.Reason == NoBranch {
		return "", r.create(ctx)
	}
	if err != nil || s.held(ctx) == tip {
		return tip, err
	}
	return s.fetch(ctx, tip, a)
}

// create makes the copy where there is none.
func (r *Reports) create(ctx context.Context) error {
	c := r.source.local("rev-parse", "--git-dir")
	if _, err := r.source.git.ask(ctx, c, ""); err == nil {
		return nil
	}
	return r.source.create(ctx, false)
}

// report is a commit to be made.
type report struct {
	base string // the commit of the branch; empty: it has none
	last string // the commit that was reported last; empty: not known
	subject,
	name string
	body []byte // nil: the document goes
}

// push makes a commit on its base and pushes it. The error is errOvertaken where the
// branch is not at the base.
func (r *Reports) push(ctx context.Context, a access, c report) error {
	s := r.source
	op := fmt.Sprintf("push to branch %s of %s", s.options.Branch, s.url)
	tree, err := r.tree(ctx, c)
	if err != nil {
		return explain("make a commit for "+s.url, err, Local)
	}
	if c.base != "" {
		former, err := s.git.ask(ctx, s.local("rev-parse", "--verify", c.base+"^{tree}"), "")
		if err == nil && strings.TrimSpace(former) == tree {
			return nil // the branch says so already
		}
	}
	args := []string{"commit-tree", tree, "-m", c.subject}
	if c.base != "" {
		args = append(args, "-p", c.base)
	}
	made := command{
		args: args, dir: s.copyDir(), fileBytes: maxIndex,
		access: access{settings: []setting{{"user.name", r.author}, {"user.email", "margolite@" + r.author}}},
		env:    []string{"GIT_AUTHOR_DATE=" + s.options.Now().UTC().Format(time.RFC3339), "GIT_COMMITTER_DATE=" + s.options.Now().UTC().Format(time.RFC3339)},
	}
	commit, err := s.git.ask(ctx, made, "")
	if err != nil {
		return explain("make a commit for "+s.url, err, Local)
	}
	commit = strings.TrimSpace(commit)
	push := command{
		args: []string{"push", "--quiet", "--no-verify", "--no-signed", "--recurse-submodules=no", s.url, commit + ":" + s.ref()},
		dir:  s.copyDir(), access: a, fileBytes: maxIndex,
	}
	if _, err := s.git.ask(ctx, push, ""); err != nil {
		return pushed(op, err)
	}
	_, err = s.git.ask(ctx, command{args: []string{"update-ref", tipRef, commit}, dir: s.copyDir(), fileBytes: maxIndex}, "")
	if err != nil {
		// The commit is on the branch, and found there the next time.
		return s.abandon(err)
	}
	return nil
}

// pushed says what a push that failed means.
func pushed(op string, err error) error {
	var exit *exitError
	if errors.As(err, &exit) {
		for _, line := range strings.Split(exit.own(), "\n") {
			switch {
			case strings.Contains(line, "[remote rejected]"):
				return &Error{Rejected, op, exit}
			case strings.Contains(line, "[rejected]"):
				return fmt.Errorf("cannot %s: %w", op, errOvertaken)
			}
		}
	}
	return explain(op, err, Unreachable)
}

// tree writes the tree of a commit: that of its base, with the folder of this device
// as it was reported last and the one document changed.
func (r *Reports) tree(ctx context.Context, c report) (string, error) {
	s := r.source
	index := []string{"GIT_INDEX_FILE=" + path.Join(s.copyDir(), "reports.index")}
	run := func(input string, args ...string) (string, error) {
		answer, err := s.git.ask(ctx, command{args: args, dir: s.copyDir(), fileBytes: maxIndex, env: index}, input)
		return strings.TrimSpace(answer), err
	}
	read := []string{"read-tree", "--empty"}
	if c.base != "" {
		read = []string{"read-tree", c.base}
	}
	if _, err := run("", read...); err != nil {
		return "", err
	}
	// What is not ours any more goes first.
	var changes strings.Builder
	theirs, err := r.own(ctx, c.base)
	if err != nil {
		return "", err
	}
	ours := theirs
	if c.last != "" && c.last != c.base {
		if ours, err = r.own(ctx, c.last); err != nil {
			ours = theirs // the copy was made anew, and has what the branch has
		}
	}
	remove := func(name string) { fmt.Fprintf(&changes, "0 %s\t%s\x00", strings.Repeat("0", 40), name) }
	for _, e := range theirs {
		remove(e.path)
	}
	for _, e := range ours {
		if e.path != c.name {
			fmt.Fprintf(&changes, "%s %s\t%s\x00", plainFile, e.id, e.path)
		}
	}
	if c.body != nil {
		blob, err := run(string(c.body), "hash-object", "-w", "--stdin")
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&changes, "%s %s\t%s\x00", plainFile, blob, c.name)
	}
	if _, err := run(changes.String(), "update-index", "-z", "--index-info"); err != nil {
		return "", err
	}
	return run("", "write-tree")
}

// own lists the documents of this device in a commit; "": there is none.
func (r *Reports) own(ctx context.Context, commit string) (files []entry, err error) {
	if commit == "" {
		return nil, nil
	}
	s := r.source
	err = s.git.run(ctx, s.list(commit, s.folder), func(_ io.WriteCloser, out *bufio.Reader) error {
		for {
			e, err := nextEntry(out)
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return err
			case len(files) == s.options.Limits.Entries:
				return fmt.Errorf("there are more than %d report documents", s.options.Limits.Entries)
			}
			files = append(files, e)
		}
	})
	return files, err
}
