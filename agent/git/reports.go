package git

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/margolite/margolite/agent/margo"
)

// Reports writes the current state back into the repository (ST-19): the statuses and the
// capabilities of a device, as documents in a folder of a branch.
//
// The folder is this device's; everything else on the branch belongs to others. Each commit is
// based on the server's branch, with the last reported folder and one new document, so that commits
// of others, a rewritten history and a deleted branch lose nothing. Each report is a commit; one
// whose push succeeded without an answer is found on the branch and not repeated.
//
// It is safe for concurrent use, and must be the only user of its work folder.
type Reports struct {
	source *Source // of the branch with the reports
	author string
}

// maxLoose is how many object files commits may leave in the copy before it is recreated, since
// nothing else removes them. Each commit adds four: the document, two folders and the commit.
const maxLoose = 512

// maxImport bounds each file that git writes for a commit.
const maxImport = 64 << 20

// attempts bounds the pushes of a commit when others push first.
const attempts = 4

var errOvertaken = errors.New("the branch has moved on")

// NewReports returns reports as commits of author, without any request or write. The options have
// the branch and the folder for reports, and a work folder of their own.
func NewReports(o Options, author string) (*Reports, error) {
	source, err := New(o)
	if err != nil {
		return nil, err
	}
	author = strings.NewReplacer("<", "", ">", "").Replace(margo.Shown(author, 200)) // as git itself writes names
	return &Reports{source: source, author: author}, nil
}

// Scope names where the reports are.
func (r *Reports) Scope() string { return r.source.Scope() }

// Reach asks for the server's branch, which may not exist before the first report.
func (r *Reports) Reach(ctx context.Context) error {
	_, err := r.source.Tip(ctx)
	if known, ok := errors.AsType[*Error](err); ok && known.Reason == NoBranch {
		return nil
	}
	return err
}

// PostStatus reports the state of a deployment. The body is a marshalled margo.Status. The report
// of a removed deployment deletes its document.
func (r *Reports) PostStatus(ctx context.Context, deploymentID string, body []byte) error {
	status, err := margo.ParseStatus(body)
	if err != nil {
		return fmt.Errorf("cannot report the status of deployment %s: %w", deploymentID, err)
	}
	subject := fmt.Sprintf("Deployment %s: %s", margo.Shown(deploymentID, 80), status.State)
	if status.Error != nil {
		subject += ", " + margo.Shown(status.Error.Code, 80)
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

// DeleteCapabilities reports that the device is gone.
func (r *Reports) DeleteCapabilities(ctx context.Context, deviceID string) error {
	return r.commit(ctx, "Device "+deviceID+" is gone", capabilitiesName, nil)
}

// commit sets one document to body, in JSON; nil deletes it.
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

// branch fetches the branch and returns its commit; empty if the server has no such branch.
func (r *Reports) branch(ctx context.Context, a access) (string, error) {
	s := r.source
	tip, err := s.tip(ctx, a)
	if known, ok := errors.AsType[*Error](err); ok && known.Reason == NoBranch {
		return "", r.create(ctx)
	}
	if err != nil || s.held(ctx) == tip {
		return tip, err
	}
	return s.using(ctx, tip, false, a, func(string) error { return nil })
}

func (r *Reports) create(ctx context.Context) error {
	if _, err := r.source.git.ask(ctx, r.source.local("rev-parse", "--git-dir"), ""); err == nil {
		return nil
	}
	return r.source.create(ctx, false)
}

type report struct {
	base string // the commit of the branch; empty: it has none
	last string // the commit that was reported last; empty: not known
	subject,
	name string
	body []byte // nil: delete the document
}

// push makes a commit on its base and pushes it, or returns errOvertaken if the branch moved on.
func (r *Reports) push(ctx context.Context, a access, c report) error {
	s := r.source
	op := fmt.Sprintf("push to branch %s of %s", s.options.Branch, s.url)
	made := command{
		args: []string{"fast-import", "--quiet", "--force"}, dir: s.copyDir(), fileBytes: maxImport,
		access: access{settings: []setting{{"fastimport.unpackLimit", "100"}}}, // object files instead of a pack per commit
	}
	commit, err := s.git.ask(ctx, made, r.script(ctx, c))
	if err != nil {
		err = explain("make a commit for "+s.url, err, Local)
		if ctx.Err() == nil { // a damaged copy would fail again
			err = errors.Join(err, s.discard())
		}
		return err
	}
	commit = strings.TrimSpace(commit)
	if c.base != "" {
		answer, err := s.git.ask(ctx, s.local("rev-parse", commit+"^{tree}", c.base+"^{tree}"), "")
		if trees := strings.Fields(answer); err == nil && len(trees) == 2 && trees[0] == trees[1] {
			return nil // already on the branch
		}
	}
	push := command{
		args: []string{"push", "--quiet", "--no-verify", "--no-signed", "--recurse-submodules=no", s.url, commit + ":" + s.ref()},
		dir:  s.copyDir(), access: a, fileBytes: maxImport,
	}
	if _, err := s.git.ask(ctx, push, ""); err != nil {
		return pushed(op, err)
	}
	_, err = s.git.ask(ctx, command{args: []string{"update-ref", tipRef, commit}, dir: s.copyDir(), fileBytes: maxImport}, "")
	if err != nil {
		// The commit is on the branch and will be found there.
		return s.abandon(err)
	}
	return nil
}

func pushed(op string, err error) error {
	if exit, ok := errors.AsType[*exitError](err); ok {
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

// script is git fast-import's input: the base with the device's last folder and one change.
func (r *Reports) script(ctx context.Context, c report) string {
	s := r.source
	var b strings.Builder
	fmt.Fprintf(&b, "commit refs/margolite/next\nmark :1\ncommitter %s <margolite@%s> %d +0000\n", r.author, r.author, s.options.Now().Unix())
	fmt.Fprintf(&b, "data %d\n%s\n", len(c.subject)+1, c.subject)
	if c.base != "" {
		fmt.Fprintf(&b, "from %s\n", c.base)
	}
	// A new copy lacks it and starts from the branch.
	if c.last != "" && c.last != c.base && s.object(ctx, c.last+"^{tree}") != "" {
		if folder := s.object(ctx, c.last+":"+s.folder); folder != "" {
			fmt.Fprintf(&b, "M 040000 %s %s\n", folder, quotePath(s.folder))
		} else {
			fmt.Fprintf(&b, "D %s\n", quotePath(s.folder))
		}
	}
	if c.body == nil {
		fmt.Fprintf(&b, "D %s\n", quotePath(c.name))
	} else {
		fmt.Fprintf(&b, "M %s inline %s\ndata %d\n%s\n", plainFile, quotePath(c.name), len(c.body), c.body)
	}
	b.WriteString("get-mark :1\n")
	return b.String()
}

// quotePath quotes a one-line path for git fast-import.
func quotePath(path string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(path) + `"`
}
