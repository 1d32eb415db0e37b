package uplink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/git"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
)

// repository is the way to a desired state in a Git repository and, if configured, to a WFM for
// reports. They are independent: one out of reach does not hold up the other.
type repository struct {
	still
	*git.Source
	reports way // nil: none are sent
}

func gitOptions(o Options, d Device) git.Options {
	g := git.Options{
		URL: o.URL, Branch: o.Git.Branch, Path: o.Git.Path, Groups: o.Git.Groups, CA: o.CA, Dir: filepath.Join(d.Dir, "git"),
		Certificate: o.Git.Certificate, Key: o.Git.Key, Logger: d.Logger, Now: d.Clock.Now,
	}
	if o.Git.Token != "" {
		g.Token = func() (string, error) { return identity.ReadSecret(o.Git.Token) }
	}
	return g
}

// reported is the way of reports into the repository itself.
type reported struct {
	still
	*git.Reports
}

func newReported(o Options, d Device) (reported, error) {
	g := gitOptions(o, d)
	g.Groups = nil // reports are this device's alone
	g.Branch, g.Path, g.Dir = o.Git.Report.Branch, o.Git.Report.Path, filepath.Join(d.Dir, "git-reports")
	r, err := git.NewReports(g, o.Git.Device)
	return reported{Reports: r}, err
}

func (w reported) open(context.Context) (api, error) { return w, nil }

func (w reported) scope() string { return w.Scope() }

func (w reported) audience() string { return w.Scope() }

func (w reported) probe(ctx context.Context) (string, error) {
	return w.Scope() + " is reachable", w.Reach(ctx)
}

// Manifest is unsupported: the desired state is on another branch.
func (w reported) Manifest(context.Context, string) (*wfm.Manifest, error) {
	return nil, errors.ErrUnsupported
}

// Documents is unsupported too.
func (w reported) Documents(context.Context, *wfm.Manifest, []margo.DeploymentRef, func(digest.Digest, []byte) error) error {
	return errors.ErrUnsupported
}

func (w *repository) open(context.Context) (api, error) { return w, nil }

func (w *repository) scope() string { return w.Scope() }

func (w *repository) audience() string {
	if w.reports == nil {
		return "nobody"
	}
	return w.reports.audience()
}

// probe fetches nothing: the copy belongs to the agent, which may be running.
func (w *repository) probe(ctx context.Context) (string, error) {
	commit, err := w.Tip(ctx)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("%s is at commit %.12s", w.Scope(), commit)
	if w.reports == nil {
		return text, nil
	}
	if _, err = w.reports.probe(ctx); err != nil {
		return "", fmt.Errorf("reports cannot be delivered: %w", err)
	}
	return text + "; " + w.reports.audience() + ", which receives the reports, is reachable", nil
}

func (w *repository) describe(s *control.IdentityStatus) {
	if w.reports != nil {
		w.reports.describe(s)
	}
}

func (w *repository) run(ctx context.Context) error {
	if w.reports != nil {
		return w.reports.run(ctx)
	}
	return w.still.run(ctx)
}

func (w *repository) close() {
	if w.reports != nil {
		w.reports.close()
	}
}

func (w *repository) PostStatus(ctx context.Context, deploymentID string, body []byte) error {
	return w.report(ctx, func(a api) error { return a.PostStatus(ctx, deploymentID, body) })
}

func (w *repository) PutCapabilities(ctx context.Context, deviceID string, body []byte) error {
	return w.report(ctx, func(a api) error { return a.PutCapabilities(ctx, deviceID, body) })
}

func (w *repository) DeleteCapabilities(ctx context.Context, deviceID string) error {
	return w.report(ctx, func(a api) error { return a.DeleteCapabilities(ctx, deviceID) })
}

func (w *repository) report(ctx context.Context, request func(api) error) error {
	if w.reports == nil {
		return nil
	}
	err := ask(ctx, w.reports, request)
	if err == nil {
		return nil
	}
	// A 404 may mean the device or the deployment. A poll tells; nothing else polls this WFM.
	var answered *wfm.Error
	if _, signs := w.reports.(*signed); signs && errors.As(err, &answered) && answered.Status == http.StatusNotFound {
		_ = ask(ctx, w.reports, func(a api) error {
			_, err := a.Manifest(ctx, "")
			return err
		})
	}
	return &besideError{err}
}

// besideError is an error of a WFM that only receives reports.
type besideError struct{ err error }

func (e *besideError) Error() string { return e.err.Error() }

func (e *besideError) Unwrap() error { return e.err }

// Beside reports that the way to the desired state is another one.
func (e *besideError) Beside() bool { return true }
