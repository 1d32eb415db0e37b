package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

// Whatever a medium makes of the store, containers run on as they are, also without
// a WFM; that hears what is so, its former version is refused, and its next one is
// applied. Locks hold all the time.
func TestDS08ADamagedStoreTouchesNothingThatRuns(t *testing.T) {
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.quiet()
	database := filepath.Join(r.StateDir(), "margolite.db")
	rewrite := func(change func(data []byte) []byte) func() error {
		return func() error {
			data, err := os.ReadFile(database)
			if err != nil {
				return err
			}
			return os.WriteFile(database, change(data), 0o600)
		}
	}
	for n, damage := range []struct {
		name string
		do   func() error
	}{
		{"it is gone", func() error { return os.Remove(database) }},
		{"a record rots", rewrite(func(data []byte) []byte {
			return bytes.ReplaceAll(data, []byte(`"phase":"active"`), []byte(`"phase":"leaving"`)[:16])
		})},
		{"pages rot", rewrite(func(data []byte) []byte {
			for at := 2 * 4096; at < len(data); at += 3 * 4096 {
				data[at+8] ^= 0x40
			}
			return data
		})},
	} {
		t.Run(damage.name, func(t *testing.T) {
			r.t = t
			before, held := r.services(demoID), r.status().Manifest
			expect.Value(r.margolite("hold", "--as", "shift 2"))(t)
			r.Kill()
			expect.Check(t, damage.do())
			expect.Check(t, r.WFM.Close())
			log := r.logLength()
			r.running()
			expect.Error(t, expect.ErrorOf(plant.Ask(t.Context(), 8090)), nil, "the application does not answer any more")
			s := r.status()
			if s.Damage == nil || s.Manifest == nil || s.Manifest.Version != held.Version || len(s.Locks) != 1 {
				t.Errorf("status says %+v of version %+v, with locks %+v", s.Damage, s.Manifest, s.Locks)
			}
			if lines := r.logged(log, "security=true", "the store was damaged"); len(lines) != 1 {
				t.Errorf("it is logged %d times: %q", len(lines), lines)
			}
			expect.Check(t, r.WFM.Start(""))
			expect.Check(t, r.WFM.SetVersion(plant.Client, held.Version-1))
			expect.True(t, r.sync() != nil, "the WFM's former version is accepted")
			expect.Check(t, r.WFM.SetVersion(plant.Client, held.Version))
			r.synced()
			plant.Require(r.t, "it is known again", func() error {
				s, err := r.Control().Status(t.Context())
				if err == nil && (len(s.Deployments) != 1 || s.Deployments[0].State != string(margo.Installed)) {
					err = fmt.Errorf("status says %+v", s.Deployments)
				}
				return err
			})
			r.untouched(demoID, before)
			r.quiet()
			if last := r.WFM.Statuses(demoID); last[len(last)-1].Status.State != margo.Installed {
				t.Errorf("the WFM heard %+v", last[len(last)-1])
			}
			next := r.publish(r.Deployment(demoID, map[string]any{"GREETING": fmt.Sprint("Moin ", n)}))
			r.waits(demoID, next.Digest, "lock")
			r.untouched(demoID, before)
			expect.Value(r.margolite("release", "--all"))(t)
			r.await(demoID, margo.Installed, next.Version)
			r.says(8090, fmt.Sprint("Moin ", n))
			if now := r.services(demoID); !sameTask(before["counter"], now["counter"]) {
				t.Errorf("the update touched what it does not change: %+v", now)
			}
			r.shows("history", "store.damaged")
			r.quiet()
		})
	}
	r.t = t
}
