package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

// attempts is how often a revision is begun that the agent does not survive,
// before it is given up.
const attempts = 3

// Change publishes one change, of some deployment and of some kind.
func (r *Rig) Change() {
	r.T.Helper()
	d := r.deployments[r.Rand.IntN(len(r.deployments))]
	kinds := []kind{good, good, good, good, good, stuck, stuck, absent, removed, removed}
	if d.now().kind == removed {
		kinds = kinds[:8]
	}
	r.change(d, kinds[r.Rand.IntN(len(kinds))])
}

// InstallAll has every deployment run, so that there is something to break.
func (r *Rig) InstallAll() {
	r.T.Helper()
	for _, d := range r.deployments {
		r.change(d, good)
	}
	r.Converge()
}

// Converge waits until the device is as the WFM wants it and has said so, and
// then holds everything against what must be true.
func (r *Rig) Converge() {
	r.T.Helper()
	var s *control.Status
	if err := r.eventually(func(ctx context.Context) (err error) {
		if s, err = r.Control().Status(ctx); err != nil {
			return err
		}
		return r.arrived(s)
	}); err != nil {
		r.T.Fatalf("seed %d: the device does not come to what the WFM wants: %v", r.options.Seed, err)
	}
	if r.publishAnew(s, (*Rig).waits) { // at any moment
		r.Converge()
		return
	}
	r.mustHold(s)
	if r.publishAnew(s, (*Rig).gaveUp) {
		r.Converge()
	}
}

// publishAnew publishes another revision, that nothing comes between, of each
// deployment whose own is as which says, and returns whether there is one.
func (r *Rig) publishAnew(s *control.Status, which func(*Rig, *deployment, *control.Status) bool) (some bool) {
	r.T.Helper()
	for _, d := range r.deployments {
		if which(r, d, s) {
			r.T.Logf("%s was given up, for now or for good: %s", d.name, d.in(s).Error.Code)
			r.change(d, good)
			some = true
		}
	}
	return some
}

// waits says whether an update has failed that the device tries again by itself, as
// its fault may pass: within seconds where it sees that, else within minutes or
// hours, which is longer than anybody's patience here.
func (r *Rig) waits(d *deployment, s *control.Status) bool {
	shown := d.in(s)
	if shown == nil || shown.State != string(margo.Failed) || shown.Active == "" || shown.Active == shown.Digest || shown.Error == nil {
		return false
	}
	return slices.Contains([]string{"STORAGE_FULL", "DEVICE_ERROR", "PORT_CONFLICT", "REGISTRY_UNREACHABLE"}, shown.Error.Code)
}

// eventually repeats for as long as patience allows. An agent that ends by itself is
// started again, as a device's supervisor does.
func (r *Rig) eventually(try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(r.T.Context(), patience)
	defer cancel()
	return plant.Until(ctx, func() error {
		if r.Running() {
			select {
			case <-r.Done():
				r.T.Log("the agent ended by itself and is started again")
				if err := r.Ended(); err != nil {
					return err
				}
				r.Restart()
			default:
			}
		}
		return try(ctx)
	})
}

// arrived says what the device still lacks.
func (r *Rig) arrived(s *control.Status) error {
	wanted := r.WFM.Version(r.ClientID())
	if s.Manifest == nil && wanted > 1 || s.Manifest != nil && s.Manifest.Version != wanted {
		return fmt.Errorf("it has manifest %+v, the WFM %d; last error of polls: %s", s.Manifest, wanted, s.WFM.LastError)
	}
	if s.Outbox > 0 {
		return fmt.Errorf("%d reports are not delivered", s.Outbox)
	}
	if s.RuntimeError != "" {
		return errors.New(s.RuntimeError)
	}
	for _, d := range r.deployments {
		if err := r.settled(d, s); err != nil {
			return err
		}
	}
	return nil
}

// settled says how a deployment is not as the WFM wants it.
func (r *Rig) settled(d *deployment, s *control.Status) error {
	shown := d.in(s)
	switch now := d.now(); {
	case now.kind == removed && shown == nil:
	case now.kind == removed || shown == nil:
		return fmt.Errorf("%s is to be %s, and is %+v", d.name, now.kind, shown)
	case shown.Digest != now.digest:
		return fmt.Errorf("%s desires %s, the WFM %s", d.name, shown.Digest, now.digest)
	case r.gaveUp(d, s):
	case shown.State != string(now.kind.ends()):
		return fmt.Errorf("%s is to end as %s, and is %s: %s %+v", d.name, now.kind.ends(), shown.State, shown.Reason, shown.Error)
	}
	return d.works(s)
}

// works says what does not run yet of what the agent says is active.
func (d *deployment) works(s *control.Status) error {
	shown := d.in(s)
	if shown == nil || shown.Active == "" {
		return nil
	}
	running := 0
	for _, service := range plant.Services(*shown) {
		if service.State == "running" {
			running++
		}
	}
	if running != len(d.services) {
		return fmt.Errorf("of %s run %d services, want %d", d.name, running, len(d.services))
	}
	if !d.answers() {
		return fmt.Errorf("%s does not answer", d.name)
	}
	return nil
}

// answers says whether the deployment's port is open.
func (d *deployment) answers() bool {
	connection, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(d.port)), time.Second)
	if err != nil {
		return false
	}
	connection.Close()
	return true
}

// in is what a status says of the deployment; nil: nothing.
func (d *deployment) in(s *control.Status) *control.Deployment {
	i := slices.IndexFunc(s.Deployments, func(c control.Deployment) bool { return c.ID == d.id })
	if i < 0 {
		return nil
	}
	return &s.Deployments[i]
}

// gaveUp says whether a revision that could run was given up, as the device may
// do: because the agent did not survive it time and again, or, having stopped a
// former one for it that runs again, for now, because of its medium. The WFM has
// been told so.
func (r *Rig) gaveUp(d *deployment, s *control.Status) bool {
	now, shown := d.now(), d.in(s)
	if now.kind != good || shown == nil || shown.State != string(margo.Failed) || shown.Error == nil {
		return false
	}
	return shown.Error.Code == "INTERRUPTED" && r.kills-now.kills >= attempts ||
		shown.Active != "" && shown.Active != shown.Digest && r.failures > now.failures
}

// last is the last report that the WFM heard of the deployment.
func (d *deployment) last(wfm *wfmsim.Server) *margo.Status {
	reports := wfm.Statuses(d.id)
	if len(reports) == 0 {
		return nil
	}
	return &reports[len(reports)-1].Status
}
