package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

// What happened while nobody heard it is told when somebody does, for each
// deployment in the order in which it happened and up to the present; and of a
// long absence not everything, but what failed and how it ended. Neither kill -9 nor the absence
// of the WFM itself makes a difference: a removal above all is not forgotten.
func TestST01POL05WhatHappenedUnheardIsToldInTheEnd(t *testing.T) {
	const charts, weeks = 3, 4
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.quiet()
	heard := len(r.WFM.Statuses(""))

	// Reports get no answer, the desired state does.
	r.inject(fault.Fault{Endpoint: wfmsim.EndpointStatus, Kind: fault.Cut})
	var newest [charts]wfmsim.Published
	for week := range weeks {
		for n := range charts {
			newest[n] = r.publishChart(n, week)
		}
		demo := r.publish(r.Deployment(demoID, map[string]any{"GREETING": week}))
		check(t, r.sync())
		r.eventually("the week's revisions were looked at", func() error {
			for _, d := range r.status().Deployments {
				want := margo.Failed
				if d.ID == demoID {
					want = margo.Installed
				}
				if d.State != string(want) || d.Adopted < newest[0].Version || d.ID == demoID && d.Adopted != demo.Version {
					return fmt.Errorf("%s is %s at %d", d.ID, d.State, d.Adopted)
				}
			}
			return nil
		})
		if week == weeks/2 {
			r.Kill()
			r.running()
		}
	}
	removed := r.remove(demoID)
	check(t, r.sync())
	r.eventually("the application is gone", func() error {
		if n := len(r.status().Deployments); n > charts {
			return fmt.Errorf("%d deployments", n)
		}
		return nil
	})
	if r.status().Outbox == 0 {
		t.Error("there is nothing to report")
	}

	// Now the WFM is out of reach altogether, and so it is after a kill.
	check(t, r.WFM.Close())
	r.Kill()
	r.running()
	if err := r.sync(); err == nil {
		t.Error("a poll of a WFM that is away succeeds")
	}
	r.Kill()
	r.WFM.Faults().Clear("")
	check(t, r.WFM.Start(""))
	r.running()

	r.await(demoID, margo.Removed, removed)
	for n := range charts {
		r.refusesChart(newest[n])
	}
	r.quiet()
	told := map[string][]string{} // by deployment
	last := map[string]uint64{}
	for _, report := range r.WFM.Statuses("")[heard:] {
		s := report.Status
		if s.AdoptedVersion < last[s.DeploymentID] {
			t.Errorf("deployment %s was reported for version %d after %d", s.DeploymentID, s.AdoptedVersion, last[s.DeploymentID])
		}
		last[s.DeploymentID] = s.AdoptedVersion
		told[s.DeploymentID] = append(told[s.DeploymentID], string(s.State))
	}
	want := map[string][]string{demoID: {string(margo.Removed)}}
	for n := range charts {
		want[chartID(n)] = slices.Repeat([]string{string(margo.Failed)}, weeks)
	}
	if !maps.EqualFunc(told, want, slices.Equal) {
		t.Errorf("of %d weeks was told %v, want %v", weeks, told, want)
	}
	if s := r.status(); s.Outbox != 0 || len(r.WFM.Deployments(plant.Client)) != charts {
		t.Errorf("%d reports are left", s.Outbox)
	}
}
