package uplink

import (
	"context"
	"path/filepath"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/git"
	"github.com/margolite/margolite/agent/identity"
)

// repository is the way to a desired state in a Git repository, and, where one
// is configured, to a WFM that hears of what became of it. Each goes its own
// way: that the one cannot be reached keeps nothing from the other.
type repository struct {
	source  *git.Source
	reports way // nil: nobody wants them
}

func newRepository(o Options, reports way, d Device) (*repository, error) {
	g := git.Options{
		URL: o.URL, Branch: o.Git.Branch, Path: o.Git.Path, CA: o.CA, Dir: filepath.Join(d.Dir, "git"),
		Limits: git.Limits{
			Document: o.Limits.Document, Expanded: o.Limits.Expanded, Entries: o.Limits.Entries, Repository: o.Limits.Bundle,
		},
		Timeout: o.Timeout, Logger: d.Logger, Now: d.Clock.Now,
	}
	if o.Git.Token != "" {
		g.Token = func() (string, error) { return identity.ReadSecret(o.Git.Token) }
	}
	source, err := git.New(g)
	if err != nil {
		return nil, err
	}
	return &repository{source, reports}, nil
}

func (w *repository) open(context.Context) (api, error) { return sources{w.source, w.reports}, nil }

func (w *repository) ended(error) {}

func (w *repository) scope() string { return w.source.Scope() }

func (w *repository) probe(ctx context.Context) (string, error) { return probe(ctx, w) }

func (w *repository) describe(s *control.IdentityStatus) {
	if w.reports != nil {
		w.reports.describe(s)
	}
}

func (w *repository) run(ctx context.Context) error {
	if w.reports != nil {
		return w.reports.run(ctx)
	}
	<-ctx.Done()
	return nil
}

func (w *repository) close() {
	if w.reports != nil {
		w.reports.close()
	}
}

// sources is the api of a repository.
type sources struct {
	*git.Source

	reports way
}

func (s sources) PostStatus(ctx context.Context, deploymentID string, body []byte) error {
	return s.report(ctx, func(a api) error { return a.PostStatus(ctx, deploymentID, body) })
}

func (s sources) PutCapabilities(ctx context.Context, deviceID string, body []byte) error {
	return s.report(ctx, func(a api) error { return a.PutCapabilities(ctx, deviceID, body) })
}

func (s sources) report(ctx context.Context, request func(api) error) error {
	if s.reports == nil {
		return nil
	}
	return ask(ctx, s.reports, request)
}
