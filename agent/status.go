package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
)

// observeTimeout bounds a look at what runs for a waiting caller.
const observeTimeout = 10 * time.Second

// Status describes the device now, from the store, the runtime, and the memory of the last poll.
func (a *Agent) Status(ctx context.Context) (*control.Status, error) {
	set := a.settings.Load()
	s := &control.Status{Device: set.Device.ID, Agent: a.o.Program, WFM: a.poller.status()}
	s.WFM.URL = set.URL
	s.Identity = a.o.WFM.Describe()
	s.Damage = a.damageOf()

	m, ok, err := a.o.Store.Manifest()
	if err != nil && !ok {
		return nil, fmt.Errorf("cannot read the accepted manifest: %w", err)
	}
	if ok {
		s.Manifest = &control.Manifest{Version: m.Version, ETag: m.ETag, Digest: m.Digest.String()}
	}
	waiting, err := a.o.Store.WaitingReports()
	if err != nil {
		return nil, err
	}
	for _, n := range waiting {
		s.Outbox += n
	}
	looking, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	projects, err := a.o.Runtime.Observe(looking)
	if err != nil { // the rest is all the more important
		s.RuntimeError = fmt.Sprintf("cannot observe the runtime: %v", err)
	}
	s.SelfCheck = a.selfCheck(s.RuntimeError)
	deployments, err := a.o.Store.Deployments()
	if err != nil && len(deployments) == 0 {
		return nil, fmt.Errorf("cannot read the deployments: %w", err)
	}
	running := make(map[string]runtime.ObservedProject, len(projects))
	for _, p := range projects {
		running[p.Name] = p
	}
	s.Locks = a.locks.list(idsOf(deployments))
	s.Deployments = make([]control.Deployment, 0, len(deployments))
	for i := range deployments {
		s.Deployments = append(s.Deployments, a.describe(&deployments[i], running))
		s.Deployments[i].Change = a.reconciler.pendingOf(&deployments[i])
		s.Deployments[i].Reported = a.reporter.reported(deployments[i].ID, waiting[deployments[i].ID])
	}
	return s, nil
}

func (a *Agent) describe(d *store.Deployment, running map[string]runtime.ObservedProject) control.Deployment {
	status := a.ledger.status(d)
	c := control.Deployment{
		ID: d.ID, Name: a.headOf(d.Desired.Digest).name, State: string(status.State), Phase: d.Phase,
		Error: (*control.Error)(d.Fault), Digest: d.Desired.Digest.String(), Adopted: status.AdoptedVersion, Since: d.Since,
		Components: make([]control.Component, 0, len(d.Components)),
	}
	if d.Active != nil {
		c.Active = d.Active.Digest.String()
	}
	if back, err := wayBack(d, ""); err == nil { // also from an update that failed and was left as it is
		c.Former = back.Digest.String()
	} else if d.Former != nil {
		c.Former = d.Former.Digest.String()
	}
	if d.Desired.Summary != nil {
		c.Unread = d.Desired.Summary.Unread
	}
	var progress map[string]control.Progress
	if w := a.reconciler.worker(d.ID); w != nil {
		c.Reason, progress = w.seen()
	}
	for _, held := range d.Components {
		cc := control.Component{Name: held.Name, State: held.State, Error: (*control.Error)(held.Fault)}
		if p, ok := progress[held.Name]; ok && Phase(d.Phase) == Fetched {
			cc.Progress = &p
		}
		if p, ok := running[projectName(d.ID, held.Name)]; ok {
			cc.Project = p.Name
			cc.Services = services(p)
		}
		c.Components = append(c.Components, cc)
	}
	return c
}

func (p *poller) status() control.WFMStatus {
	hold, now := p.silence.Hold(), p.moment().Wall
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.state.WFMStatus
	if left := hold.Left(); left > 0 { // the plan may be older
		s.Waiting = string(hold.Reason())
		if end := now.Add(left); s.NextPoll.Before(end) {
			s.NextPoll = end.UTC()
		}
	}
	if hold.Silence > 0 {
		s.SilentUntil = now.Add(hold.Silence).UTC()
	}
	if hold.Downtime > 0 {
		s.DowntimeUntil = now.Add(hold.Downtime).UTC()
	}
	return s
}
