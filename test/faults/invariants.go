package faults

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/faults/medium"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

// mustHold waits until everything is true of a device that has come to rest, and says
// what is not. Some of it needs a moment: containerd collects what nobody refers to a
// second after the last change, a shim that a kill made forgotten ends after half a
// minute, and the WFM is told less often while it answers wrongly.
func (r *Rig) mustHold(s *control.Status) {
	r.T.Helper()
	if err := r.eventually(func(ctx context.Context) error {
		var violated []error
		for what, err := range map[string]error{
			"what is active runs, of one revision and once": r.runsExactly(s),
			"nothing else is left":                          r.hasNothingElse(s),
			"what does not run has no port":                 r.portsAreClosed(s),
			"volumes lose nothing":                          r.volumesAreWhole(ctx, s),
			"the accepted version never goes back":          r.goesForward(s),
			"the WFM heard how everything ended":            r.heardTheEnd(s),
			"the WFM heard everything in order":             r.heardInOrder(),
			"the WFM refused no report":                     r.refusedNothing(),
		} {
			if err != nil {
				violated = append(violated, fmt.Errorf("%s: %w", what, err))
			}
		}
		return errors.Join(violated...)
	}); err != nil {
		r.T.Fatalf("seed %d: violated: %v", r.options.Seed, err)
	}
}

// process is one of a service.
type process struct {
	deployment, service string
	revision            int
	pid                 int
	started             string // in ticks since the machine was
}

// processes are those of all services, as the kernel knows them.
func processes() []process {
	var all []process
	for _, pid := range plant.Processes() {
		variables := plant.Environment(pid)
		p := process{pid: pid, deployment: variables["FAULTS_NAME"], service: variables["FAULTS_SERVICE"]}
		p.revision, _ = strconv.Atoi(variables["FAULTS_REVISION"])
		if p.deployment == "" {
			continue
		}
		if stat := plant.Stat(pid); stat.State != "" && stat.State != "Z" {
			p.started = stat.Started
			all = append(all, p)
		}
	}
	return all
}

// runsExactly: of each deployment the services of the active revision run, each
// once, and of the others none; and the active revision is what it should be. A
// first installation that failed is tried again: of a deployment that has no active
// revision, services of the desired one may run while it is, each once, and
// between its tries nothing does, which comes soon.
func (r *Rig) runsExactly(s *control.Status) error {
	want := map[string]bool{}
	for _, d := range r.deployments {
		active, err := r.active(d, s)
		if err != nil {
			return err
		}
		for _, service := range d.services {
			if active != nil {
				want[fmt.Sprintf("%s/%s %d", d.name, service, active.number)] = true
			}
		}
	}
	run := map[string]bool{}
	for _, p := range processes() {
		name := fmt.Sprintf("%s/%s %d", p.deployment, p.service, p.revision)
		if run[name] || !want[name] {
			return fmt.Errorf("%s runs, want nothing but %v, each once", name, want)
		}
		run[name] = true
	}
	for name := range want {
		if !run[name] {
			return fmt.Errorf("%s does not run, only %v", name, run)
		}
	}
	return nil
}

// active is the revision that has to run: the desired one where it is good, else
// the one before it that the agent says is active, which must be a good one and
// not older than what was known to run. Nil: none.
func (r *Rig) active(d *deployment, s *control.Status) (*revision, error) {
	shown := d.in(s)
	if shown == nil || shown.Active == "" {
		if d.now().kind == good && !r.gaveUp(d, s) {
			return nil, fmt.Errorf("%s has no active revision", d.name)
		}
		for _, v := range d.heard(r.WFM, margo.Installed) {
			if v > d.begun(r.WFM) && shown != nil {
				return nil, fmt.Errorf("%s has no active revision, and ran with manifest %d", d.name, v)
			}
		}
		return nil, nil
	}
	i := slices.IndexFunc(d.published, func(p revision) bool { return p.digest == shown.Active })
	if i < 0 {
		return nil, fmt.Errorf("%s runs %s, which was never published", d.name, shown.Active)
	}
	active := &d.published[i]
	switch {
	case active.kind != good:
		return nil, fmt.Errorf("revision %d of %s is active and %s", active.number, d.name, active.kind)
	case active.version < d.begun(r.WFM):
		return nil, fmt.Errorf("revision %d of %s is active and was removed", active.number, d.name)
	case d.now().kind == good && !r.gaveUp(d, s) && active.number != d.now().number:
		return nil, fmt.Errorf("revision %d of %s is active, want %d", active.number, d.name, d.now().number)
	}
	for _, p := range d.published[i+1:] {
		if p.kind == good && slices.Contains(d.heard(r.WFM, margo.Installed), p.version) {
			return nil, fmt.Errorf("revision %d of %s is active, and %d ran already", active.number, d.name, p.number)
		}
	}
	return active, nil
}

// begun is the version since when the deployment is listed without a break, as
// far as the device has noticed: it may not have asked for every manifest.
func (d *deployment) begun(wfm *wfmsim.Server) uint64 {
	return slices.Max(append(d.heard(wfm, margo.Removed), 0))
}

// heard are the versions for which the WFM heard that it has a state.
func (d *deployment) heard(wfm *wfmsim.Server, state margo.State) (versions []uint64) {
	for _, report := range wfm.Statuses(d.id) {
		if report.Status.State == state {
			versions = append(versions, report.Status.AdoptedVersion)
		}
	}
	return versions
}

// hasNothingElse: containers, snapshots, links and shims are those of what runs,
// also of a first installation that failed, between its tries. What a kill left of a
// container that was being made, and that nobody wants any more, is leased, and
// goes with the lease.
func (r *Rig) hasNothingElse(s *control.Status) error {
	services, projects := 0, 0 // that run
	for _, d := range r.deployments {
		if shown := d.in(s); shown != nil && shown.Active != "" {
			services, projects = services+len(d.services), projects+1
		}
	}
	now := r.Look(r.T)
	var wrong []error
	for _, c := range []struct {
		kind, word string
		want, more int
	}{
		{"container", "", services, 0},
		{"snapshot", "", services, r.leased()},
		{"link", "mgl-", projects, 0}, // bridges
		{"link", "mgv-", services, 0}, // and who is on them
		{"process", "containerd-shim", projects, 0},
	} {
		n := 0
		for _, name := range now[c.kind] {
			if strings.Contains(name, c.word) {
				n++
			}
		}
		if n < c.want || n > c.want+c.more {
			wrong = append(wrong, fmt.Errorf("%d of kind %s %s, want %d: %q", n, c.kind, c.word, c.want, now[c.kind]))
		}
	}
	return errors.Join(wrong...)
}

// portsAreClosed: where nothing is to run nothing answers.
func (r *Rig) portsAreClosed(s *control.Status) error {
	for _, d := range r.deployments {
		if shown := d.in(s); shown != nil && shown.Active != "" {
			continue
		}
		if d.answers() {
			return fmt.Errorf("somebody answers on port %d of %s", d.port, d.name)
		}
	}
	return nil
}

// volumesAreWhole: no number is given out a second time, whatever happened to
// the application, to its revisions and to the medium.
func (r *Rig) volumesAreWhole(ctx context.Context, s *control.Status) error {
	for _, d := range r.deployments {
		if shown := d.in(s); shown == nil || shown.Active == "" {
			continue
		}
		n, err := d.count(ctx)
		if err != nil {
			return fmt.Errorf("%s does not count: %w", d.name, err)
		}
		if n <= d.counted {
			return fmt.Errorf("%s gave out %d, and %d before", d.name, n, d.counted)
		}
		d.counted = n
	}
	return nil
}

// goesForward: the accepted version never goes back.
func (r *Rig) goesForward(s *control.Status) error {
	if s.Manifest == nil {
		return nil
	}
	if s.Manifest.Version < r.accepted {
		return fmt.Errorf("manifest %d is accepted, after %d", s.Manifest.Version, r.accepted)
	}
	r.accepted = s.Manifest.Version
	return nil
}

// heardTheEnd: the last report of each deployment is how it is.
func (r *Rig) heardTheEnd(s *control.Status) error {
	for _, d := range r.deployments {
		now, last := d.now(), d.last(r.WFM)
		switch {
		case last == nil && now.kind == removed: // published and taken back unseen
		case last == nil:
			return fmt.Errorf("nothing was heard of %s", d.name)
		case r.gaveUp(d, s) && last.State == margo.Failed:
		case last.State != now.kind.ends(), now.kind != removed && last.AdoptedVersion < now.version:
			return fmt.Errorf("of %s was heard last: %s with manifest %d, want %s with %d", d.name, last.State, last.AdoptedVersion, now.kind.ends(), now.version)
		}
	}
	return nil
}

// heardInOrder: apart from what was told again because its acknowledgement was
// lost with a kill, what was heard of a deployment is of one manifest version
// after the other, nothing twice, and nothing is said that was not so.
func (r *Rig) heardInOrder() error {
	again := 0
	for _, d := range r.deployments {
		told := map[string]bool{}
		var former *margo.Status
		for _, report := range r.WFM.Statuses(d.id) {
			status := report.Status
			if told[string(report.Body)] && status.State != margo.Pending { // which is about a version to come
				again++
				continue
			}
			told[string(report.Body)] = true
			if former != nil && status.AdoptedVersion < former.AdoptedVersion {
				return fmt.Errorf("of %s was heard %s with manifest %d after %s with %d", d.name, status.State, status.AdoptedVersion, former.State, former.AdoptedVersion)
			}
			if k := d.at(status.AdoptedVersion).kind; status.State == margo.Installed && k != good || status.State == margo.Removed && k != removed {
				return fmt.Errorf("of %s was heard %s with manifest %d, whose revision is %s", d.name, status.State, status.AdoptedVersion, k)
			}
			former = &status
		}
	}
	// A kill may lose the acknowledgements of what was just told, of each deployment.
	if most := r.kills * 4 * len(r.deployments); again > most {
		return fmt.Errorf("%d reports were told again, after %d kills", again, r.kills)
	}
	return nil
}

// at is the revision that a manifest version asks for.
func (d *deployment) at(version uint64) revision {
	found := revision{kind: removed}
	for _, p := range d.published {
		if p.version <= version {
			found = p
		}
	}
	return found
}

// refusedNothing: no report was one that the standard forbids.
func (r *Rig) refusedNothing() error {
	for _, q := range r.WFM.Requests().Requests() {
		if q.Endpoint == wfmsim.EndpointStatus && q.Status >= http.StatusBadRequest && q.Status < http.StatusInternalServerError && q.Status != http.StatusTooManyRequests {
			return fmt.Errorf("%s %s was answered %d", q.Method, q.Path, q.Status)
		}
	}
	return nil
}

// storeIsWhole: the databases on the device, which does not run, have the
// structure that they should have. A medium that failed may have taken it from
// them: then the next start has to make up for that.
func (r *Rig) storeIsWhole(failed bool) {
	r.T.Helper()
	for _, name := range []string{
		storeFile,
		metaFile,
		"containerd/io.containerd.snapshotter.v1.overlayfs/metadata.db",
	} {
		err := r.databaseIsWhole(filepath.Join(r.StateDir(), name))
		switch {
		case err == nil:
		case failed:
			r.T.Logf("%s is damaged: %v", name, err)
		default:
			r.T.Fatalf("seed %d: violated: %s is whole: %v", r.options.Seed, name, err)
		}
	}
}

func (r *Rig) databaseIsWhole(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0 {
		return nil // not made, or not begun
	}
	copied := filepath.Join(r.dir, "db") // or the check would hold a lock
	if err := errors.Join(err, os.WriteFile(copied, data, 0o600)); err != nil {
		return err
	}
	// bbolt's own check ends the process where it meets damage.
	out, err := exec.Command(filepath.Join(r.options.Programs, agent), "apart", "check", copied).CombinedOutput()
	if err == nil && len(out) > 0 {
		err = errors.New("it is damaged")
	}
	if err != nil {
		return fmt.Errorf("%w: %.500s", err, out)
	}
	return nil
}

// steady are the processes of the deployments that are not to change now, by
// name. Those of a revision that does not work come and go with its tries.
func (r *Rig) steady() map[string][]process {
	byName := map[string][]process{}
	for _, p := range processes() {
		tried := func(d *deployment) bool {
			return d.name == p.deployment && d.now().kind != good && d.now().number == p.revision
		}
		if !slices.ContainsFunc(r.deployments, tried) {
			byName[p.deployment] = append(byName[p.deployment], p)
		}
	}
	return byName
}

// Undisturbed remembers what runs, and gives a function that fails the test when
// a deployment whose revisions are still the same has been restarted since.
func (r *Rig) Undisturbed() func() {
	r.T.Helper()
	before := r.steady()
	versions := map[string]uint64{}
	for _, d := range r.deployments {
		versions[d.name] = d.now().version
	}
	return func() {
		r.T.Helper()
		now := r.steady()
		for _, d := range r.deployments {
			if d.now().version == versions[d.name] && !slices.Equal(before[d.name], now[d.name]) {
				r.T.Fatalf("seed %d: violated: what happens to others disturbs nobody: %s runs as %+v, ran as %+v",
					r.options.Seed, d.name, now[d.name], before[d.name])
			}
		}
	}
}

// End takes everything back, and says what is left of it; on a medium of its own also
// after the power goes at once: what is forgotten must not come back with it.
func (r *Rig) End() {
	r.T.Helper()
	for _, d := range r.deployments {
		if d.now().kind != removed {
			r.change(d, removed)
		}
	}
	r.Converge()
	if r.disk != nil {
		r.CutPower(medium.All)
		r.Converge()
	}
	left := func(context.Context) error {
		var lines []error
		for _, line := range r.Left(r.T, r.before) {
			// A containerd of the system that is killed while it deletes a task leaves the
			// task's directory, until it starts again: it is not ours to touch.
			theirs := r.options.Containerd != "" && strings.Contains(line, "/io.containerd.runtime.v2.task/")
			if !theirs {
				lines = append(lines, errors.New(line))
			}
		}
		return errors.Join(lines...)
	}
	if err := r.eventually(left); err != nil {
		r.T.Errorf("seed %d: violated: nothing is left: %v", r.options.Seed, err)
	}
	check(r.T, r.Stop())
	r.storeIsWhole(false)
	r.T.Logf("seed %d: %d kills, manifest %d", r.options.Seed, r.kills, r.accepted)
}

// leased is for how many containers that are being made there are leases.
func (r *Rig) leased() int {
	client := expect.Value(containerd.Open(r.Containers(), "margo"))(r.T)
	defer client.Close()
	leases, _ := client.LeasesService().List(r.T.Context())
	n := 0
	for _, lease := range leases {
		if strings.HasPrefix(lease.ID, "margolite-create-") {
			n++
		}
	}
	return n
}
