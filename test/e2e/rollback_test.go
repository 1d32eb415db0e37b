package e2e

import (
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
)

// A WFM that was set up anew, or restored from a backup, counts from where it was: the
// device refuses that until somebody on the device says that it is meant.
func TestDS06DS07RollbackIsRefusedUntilAnOperatorAcceptsIt(t *testing.T) {
	long(t, "a WFM set back")
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.refusesChart(r.publishedAndSynced(1, 1))
	r.quiet()
	before, held := r.services(demoID), r.status().Manifest
	_, err := r.Remove(chartID(1)) // what the backup does not know
	check(t, err)
	check(t, r.WFM.Restart(plant.Client))

	t.Run("DS-06 DS-07 it is refused", func(t *testing.T) {
		r.t = t
		for range 3 {
			if err := r.sync(); err == nil {
				t.Error("the WFM's former version is accepted")
			}
		}
		s := r.status()
		served := s.WFM.RefusedManifest
		if served == nil || served.Version != 1 || s.Manifest.Version != held.Version || s.Manifest.Digest != held.Digest {
			t.Errorf("the device holds %+v and says %+v, held %+v", s.Manifest, s.WFM, held)
		}
		if lines := r.logged(0, "security=true", "DS-06"); len(lines) != 1 {
			t.Errorf("the refusal is logged %d times: %q", len(lines), lines)
		}
		r.untouched(demoID, before)
	})
	t.Run("an operator accepts it", func(t *testing.T) {
		r.t = t
		if err := r.sync(); err == nil {
			t.Error("the WFM's former version is accepted")
		}
		log := r.logLength()
		out, err := r.margolite("accept-rollback", "--yes")
		check(t, err)
		if !containsAll(out, "version 1", "is accepted") {
			t.Errorf("accept-rollback says %q", out)
		}
		r.await(demoID, margo.Installed, 1)
		s := r.status()
		if s.Manifest.Version != 1 || s.WFM.Refused != "" || s.WFM.RefusedManifest != nil || len(s.Deployments) != 1 {
			t.Errorf("afterwards status says %+v and %+v", s.Manifest, s.WFM)
		}
		if lines := r.logged(log, "security=true", "at an operator's request"); len(lines) != 1 {
			t.Errorf("the acceptance is logged %d times: %q", len(lines), lines)
		}
		r.untouched(demoID, before)
		r.refusesChart(r.publishedAndSynced(2, 1)) // version 2
		r.untouched(demoID, before)
	})
	r.t = t
}
