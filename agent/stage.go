package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/store"
)

// Labels on the containers of deployments. Projects without them are not ours to change.
const (
	labelDeployment = "io.margo.deployment"
	labelComponent  = "io.margo.component"
)

const (
	// defaultTimeout bounds the installation of a component without a timeout (AD-08).
	defaultTimeout = 10 * time.Minute
	// longestTimeout is the upper limit where Settings.MaxTimeout is 0.
	longestTimeout = 2 * time.Hour
)

// maxProjectName bounds project names, which become parts of paths and container names.
const maxProjectName = 100

const keptName = maxProjectName - 1 - 16

// stage brings all that the desired revision needs onto the device, and pins it, before anything
// that runs is touched. nil: the record moved on. If there is no space, what is kept for a
// rollback by hand makes room.
func (r *reconciler) stage(ctx context.Context, w *worker, d *store.Deployment) error {
	err := r.bring(ctx, w, d)
	if isFull(err) && ctx.Err() == nil {
		made, roomErr := r.makeRoom(ctx, d, err)
		if roomErr != nil && ctx.Err() == nil {
			r.logger.Warn("cannot free space on the device", "deployment", d.ID, "error", roomErr)
		}
		if made {
			err = r.bring(ctx, w, d)
		}
	}
	var f *fault
	switch {
	case err == nil, ctx.Err() != nil, !errors.As(err, &f):
		return err
	case f.temporary():
		return f // pending until the registry is back
	}
	return r.fail(ctx, w, d, f)
}

// stageComponents brings the components of the desired revision onto the device. It returns them
// for the record, with the artifacts to keep.
func (r *reconciler) stageComponents(ctx context.Context, d *store.Deployment, t *round) (*store.Revision, map[digest.Digest][]byte, error) {
	doc, err := r.document(d.Desired.Digest)
	if err != nil {
		return nil, nil, err
	}
	if err := r.eligible(d.ID, doc); err != nil {
		return nil, nil, err
	}
	for _, member := range doc.Ignored {
		r.logger.Warn("unknown member of the document ignored", "deployment", d.ID, "reason", member)
	}
	if err := unpackable(d); err != nil {
		return nil, nil, err
	}
	staged := &store.Revision{}
	var components []stagedComponent
	artifacts := map[digest.Digest][]byte{}
	for _, c := range doc.Components {
		if _, warnings, err := doc.Settings(c.Name); err == nil {
			for _, w := range warnings {
				r.logger.Warn("parameter not applied", "deployment", d.ID, "component", c.Name, "reason", w)
			}
		}
		if timeout, shortened := r.timeout(c); shortened {
			r.logger.Warn("timeout shortened to runtime.maxTimeout", "deployment", d.ID, "component", c.Name, "timeout", c.Timeout, "maxTimeout", timeout)
		}
		fetched := t.fetches()
		data, signed, err := r.fetchPackage(ctx, d, c, r.progressOf(d, c.Name, t))
		fetched()
		if err != nil {
			return nil, nil, runtimeFault(c.Name, err)
		}
		s := store.Staged{Component: c.Name, Project: projectName(d.ID, c.Name), Package: digest.FromBytes(data), Signed: signed}
		artifacts[s.Package] = data
		r.hub.send(control.Event{
			Kind: control.PackageVerified, Deployment: d.ID, Component: c.Name, Digest: s.Package.String(),
			Progress: &control.Progress{Object: c.Name, Done: int64(len(data)), Total: int64(len(data))},
		})
		one, err := r.load(ctx, d.ID, doc, c, &s, data)
		if err != nil {
			return nil, nil, err
		}
		for _, w := range one.project.Warnings() {
			r.logger.Warn("questionable Compose file", "deployment", d.ID, "component", c.Name, "reason", w)
		}
		s.Sources = one.project.Sources()
		if one.images = pinsOf(d, &s); d.Found && one.images == nil {
			one.images = r.foundImages(ctx, s.Project)
		}
		components = append(components, one)
		staged.Staged = append(staged.Staged, s)
	}
	loaded := revisionOf(doc, components)
	if len(loaded.unread) > 0 {
		r.logger.Warn("parameters that no service reads", "deployment", d.ID, "parameters", loaded.unread)
	}
	judged := t.fetches() // it may ask registries for signatures
	err = r.judge(ctx, d.ID, doc, loaded.asks(), components, nil)
	judged()
	if err != nil {
		return nil, nil, err
	}
	for _, c := range components {
		switch complete, err := r.runtime.Complete(ctx, c.project, c.images); {
		case err != nil:
			return nil, nil, runtimeFault(c.name, err)
		case !complete && !t.startDownloading():
			return nil, nil, errMustDownload
		}
	}
	for i, c := range components {
		s := &staged.Staged[i]
		s.Images, err = r.runtime.Stage(ctx, c.project, c.images, r.progressOf(d, s.Component, t))
		if err != nil {
			return nil, nil, runtimeFault(s.Component, err)
		}
		components[i].images = s.Images
	}
	summary, effects := r.summarize(ctx, d.ID, d.Active, loaded)
	staged.Summary, artifacts[summary.Effects] = summary, effects
	return staged, artifacts, nil
}

// eligible refuses what this device cannot run, before anything is fetched.
func (r *reconciler) eligible(id string, doc *margo.Deployment) error {
	switch own := r.settings.Load().Device.ID; {
	case !margo.SameID(doc.ID, id): // AD-02
		return &fault{code: codeInvalidDocument, err: fmt.Errorf("the document belongs to deployment %s", doc.ID)}
	case doc.Type != margo.Compose: // AD-03, DEV-04
		return &fault{code: codeUnsupportedType, err: fmt.Errorf("this device runs compose deployments, not %q", doc.Type)}
	case doc.DeviceID != "" && doc.DeviceID != own && doc.DeviceID != own+"/*" && doc.DeviceID != r.wfm.ClientID(): // AD-14, A-35
		return &fault{code: codeWrongDevice, err: fmt.Errorf("the deployment is for device %q, this one is %q", doc.DeviceID, own)}
	case len(doc.Components) == 0:
		return &fault{code: codeInvalidDocument, err: errors.New("the document has no components")}
	case len(doc.Foreign) > 0:
		return &fault{code: codeInvalidDocument, err: doc.Foreign}
	}
	return r.constrained(doc)
}

// constrained refuses what needs more than this device reports to offer (AD-11, AD-12, AD-15).
// That may change, so it is retried.
func (r *reconciler) constrained(doc *margo.Deployment) error {
	if doc.Constraints == nil {
		return nil
	}
	capabilities, err := Describe(r.settings.Load().Device, r.facts, r.logger)
	if err == nil {
		err = doc.Constraints.Check(capabilities)
	}
	var unmet *margo.Unmet
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &unmet):
		return &fault{code: codeInternal, err: err}
	case unmet.Capacity:
		return &fault{code: codeCapacity, err: unmet}
	default:
		return &fault{code: codeNotEligible, err: unmet}
	}
}

// document reads the document of a revision. The error is a *fault.
func (r *reconciler) document(revision digest.Digest) (*margo.Deployment, error) {
	body, err := r.store.Artifact(revision)
	if err != nil {
		return nil, &fault{code: codeInternal, err: fmt.Errorf("cannot read document %s: %w", revision, err)}
	}
	doc, err := margo.ParseDeployment(body)
	if err != nil {
		return nil, &fault{code: codeInvalidDocument, err: err}
	}
	return doc, nil
}

func (r *reconciler) load(ctx context.Context, id string, doc *margo.Deployment, c margo.Component, s *store.Staged, data []byte) (stagedComponent, error) {
	settings, _, err := doc.Settings(c.Name) // the warnings were given when it was staged
	if err != nil {
		return stagedComponent{}, &fault{code: codeInvalidParameters, component: c.Name, err: err}
	}
	project, err := r.runtime.Load(ctx, runtime.Source{
		Project:     s.Project,
		Package:     data,
		Strict:      c.Repository != "",
		Environment: settings.Environment,
		Ports:       settings.Ports,
		Labels:      map[string]string{labelDeployment: id, labelComponent: c.Name},
	})
	if err != nil {
		return stagedComponent{}, runtimeFault(c.Name, err)
	}
	project.PinSources(s.Sources)
	project.Joins = func(network, of string) error {
		if mayBeOf(of, id) {
			return nil
		}
		ask := policy.ServiceAsk{Component: c.Name, Signed: true, Shared: []string{network}}
		return notAllowed(r.settings.Load().Gate.Admit(id, policy.Ask{Services: []policy.ServiceAsk{ask}}))
	}
	return stagedComponent{name: c.Name, signed: isSigned(c, s), project: project, images: s.Images}, nil
}

// applyComponent makes one staged component run within its time (AD-08). If it is supervised
// already, its existing containers are left to the runtime's restart policy. The error is a
// *fault, or ctx's.
func (r *reconciler) applyComponent(
	ctx context.Context, id string, doc *margo.Deployment, c margo.Component, rev *store.Revision, supervised bool,
) (*runtime.Project, error) {
	timeout, _ := r.timeout(c)
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	project, err := r.runComponent(bounded, id, doc, c, rev, supervised)
	switch {
	case err == nil:
		return project, nil
	case ctx.Err() != nil:
		return nil, err
	case bounded.Err() != nil:
		return nil, &fault{code: codeTimeout, component: c.Name, err: fmt.Errorf("not installed within %s: %w", timeout, err)}
	}
	return nil, runtimeFault(c.Name, err)
}

// timeout bounds the installation of a component; shortened: below what its document asks for.
func (r *reconciler) timeout(c margo.Component) (timeout time.Duration, shortened bool) {
	most := cmp.Or(r.settings.Load().MaxTimeout, longestTimeout)
	return min(cmp.Or(c.Timeout, defaultTimeout), most), c.Timeout > most
}

func (r *reconciler) runComponent(
	ctx context.Context, id string, doc *margo.Deployment, c margo.Component, rev *store.Revision, supervised bool,
) (*runtime.Project, error) {
	one, err := r.loadStaged(ctx, id, doc, c, rev, true)
	if err != nil {
		return nil, err
	}
	project := one.project
	project.Pin(one.images)
	same, err := r.runtime.Matches(ctx, project)
	if err != nil || same && supervised {
		return project, err
	}
	if len(project.Compose.Outside) > 0 {
		// Its files outside the package may have changed since it was judged.
		if err := r.judge(ctx, id, doc, asksOf(one), []stagedComponent{one}, one.images); err != nil {
			return nil, err
		}
	}
	options := runtime.ApplyOptions{Settle: r.settings.Load().Settle, Notify: r.notify(id, c.Name)}
	err = r.runtime.Apply(ctx, project, options)
	if runtime.CodeOf(err) != runtime.NotFound {
		return project, err
	}
	// A staged image was removed or lost; it may still be available.
	if _, err := r.runtime.Stage(ctx, project, one.images, nil); err != nil {
		return nil, err
	}
	return project, r.runtime.Apply(ctx, project, options)
}

// formerPackage is what the revision that worked last pinned for the same coordinates, or nil.
func (r *reconciler) formerPackage(d *store.Deployment, c margo.Component) *store.Staged {
	if d.Active == nil {
		return nil
	}
	same := func(o margo.Component) bool { return o.Name == c.Name && originOf(o) == originOf(c) }
	if doc, err := r.document(d.Active.Digest); err != nil || !slices.ContainsFunc(doc.Components, same) {
		return nil
	}
	return stagedOf(d.Active.Staged, c.Name)
}

func stagedOf(staged []store.Staged, component string) *store.Staged {
	i := slices.IndexFunc(staged, func(s store.Staged) bool { return s.Component == component })
	if i < 0 {
		return nil
	}
	return &staged[i]
}

// pinsOf gives the images to keep: those pinned when this revision was staged before, else those
// of the revision that worked last if it ran the same package, so that a moved tag does not
// recreate what did not change.
func pinsOf(d *store.Deployment, s *store.Staged) map[string]digest.Digest {
	held := d.Desired.Staged
	if d.Active != nil {
		held = slices.Concat(held, d.Active.Staged)
	}
	for _, h := range held {
		if h.Component == s.Component && h.Package == s.Package {
			return maps.Clone(h.Images)
		}
	}
	return nil
}

// fetchPackage gets the package of a component and whether it came signed: what this revision
// pinned already, else from its origin, and if that is out of reach what the former revision
// pinned for the same coordinates, which are immutable by convention. A package accepted unsigned
// does not stand in for one that has to be signed.
func (r *reconciler) fetchPackage(ctx context.Context, d *store.Deployment, c margo.Component, progress func(runtime.Progress)) (data []byte, signed bool, err error) {
	origin := originOf(c)
	if trust := r.settings.Load().Packages; trust != nil && c.Repository != "" {
		origin.Trust = &image.Trust{Keys: trust.Keys, Notation: trust.Notation, Now: r.now}
	}
	suffices := func(s *store.Staged) bool { return s.Signed || origin.Trust == nil }
	if s := stagedOf(d.Desired.Staged, c.Name); s != nil && suffices(s) {
		data, err = r.stagedPackage(ctx, c, s, progress)
		return data, s.Signed, err
	}
	p, err := r.runtime.FetchPackage(ctx, origin, progress)
	if err == nil {
		return p.Data, p.Signed, nil
	}
	if runtime.CodeOf(err) == runtime.Unreachable {
		if held := r.formerPackage(d, c); held != nil && suffices(held) {
			data, err = r.store.Artifact(held.Package)
			return data, held.Signed, err
		}
	}
	return nil, false, err
}

// stagedPackage reads the pinned package of a revision. If it is missing or damaged, it is
// downloaded again and must have the same digest.
func (r *reconciler) stagedPackage(ctx context.Context, c margo.Component, s *store.Staged, progress func(runtime.Progress)) ([]byte, error) {
	data, err := r.store.Artifact(s.Package)
	if !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrCorrupt) {
		return data, err
	}
	r.logger.Warn("package is lost and will be fetched again", "component", c.Name, "digest", s.Package.String(), "error", err)
	lost := err
	p, err := r.runtime.FetchPackage(ctx, originOf(c), progress)
	if err != nil {
		return nil, fmt.Errorf("%w, and %w", lost, err)
	}
	if p.Digest != s.Package {
		return nil, fmt.Errorf("package %s is lost, and its origin now has a different one", s.Package)
	}
	return p.Data, r.ledger.restore(p.Data)
}

func originOf(c margo.Component) runtime.PackageRef {
	return runtime.PackageRef{
		Repository: strings.TrimPrefix(c.Repository, "oci://"),
		Revision:   c.Revision,
		Location:   c.PackageLocation,
		Key:        c.KeyLocation,
	}
}

func (r *reconciler) progressOf(d *store.Deployment, component string, t *round) func(runtime.Progress) {
	return func(p runtime.Progress) {
		if p.Unpacks > 0 {
			if err := r.unpacks(t, d, component, p.Unpacks); err != nil {
				t.cancel(err)
			}
		}
		t.note(p)
		seen := control.Progress{Object: p.Object, Done: p.Done, Total: p.Total}
		t.w.advance(component, seen)
		r.hub.send(control.Event{Kind: control.Transfer, Deployment: t.w.id, Component: component, Progress: &seen})
	}
}

// mayBeOf tells by its name whether a project may be a deployment's: true for all that are.
func mayBeOf(project, deployment string) bool {
	prefix := projectPrefix(deployment)
	return strings.HasPrefix(project, prefix[:min(len(prefix), keptName)])
}

// projectPrefix begins the names of a deployment's projects: its id. An id that is no UUID may
// have characters that project names must not have; a digest of it keeps deployments apart.
func projectPrefix(deployment string) string {
	id := strings.ToLower(deployment)
	if margo.IsUUID(id) {
		return id + "-"
	}
	sum := sha256.Sum256([]byte(id))
	readable := strings.Map(func(c rune) rune {
		if c == '.' || c == '~' {
			return '-'
		}
		return c
	}, id)
	return hex.EncodeToString(sum[:8]) + "-" + readable + "-"
}

// projectName is the project of a component: unique and stable.
func projectName(deployment, component string) string {
	name := projectPrefix(deployment) + component
	if len(name) <= maxProjectName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:keptName] + "-" + hex.EncodeToString(sum[:8])
}
