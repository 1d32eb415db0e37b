package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

// What a hostile WFM may make the real agent take. The agent has its containerd
// in the same process, which does its own work meanwhile.
const (
	hostileMemory = 16 << 20
	hostileDisk   = 8 << 20
)

// Whatever a WFM answers, the containers that run are the same afterwards, with
// the same uptime, and the agent has taken little for it. What can be answered is
// tried out in agent; this is the real program with a real container.
func TestDS18HostileWFMLeavesContainersAlone(t *testing.T) {
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.install(r.Deployment(demoID, map[string]any{"GREETING": "Hello again"}))
	r.quiet()
	before, visits := r.services(demoID), r.answers(8090).Visit
	version := r.status().Manifest.Version

	at := func(endpoints []string, f fault.Fault) (all []fault.Fault) {
		for _, endpoint := range endpoints {
			f.Endpoint = endpoint
			all = append(all, f)
		}
		return all
	}
	manifest, documents := []string{wfmsim.EndpointManifest}, []string{wfmsim.EndpointBundle, wfmsim.EndpointDocument}
	var cases [][]fault.Fault
	for _, f := range []fault.Fault{
		{Kind: fault.Endless, Bytes: 256 << 20},
		{Kind: fault.Bomb, Bytes: 96 << 20},
		{Kind: fault.Corrupt, Bytes: 10},
	} {
		cases = append(cases, at(manifest, f), at(documents, f))
	}
	r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Never heard"}))
	for _, faults := range cases {
		t.Run(fmt.Sprintf("%s %s", faults[0].Endpoint, faults[0].Kind), func(t *testing.T) {
			r.t = t
			r.WFM.Faults().Clear("")
			idle, held := r.memory(true), r.stateSize()
			for _, f := range faults {
				expect.Value(r.WFM.Faults().Inject(f))(t)
			}
			if err := r.Control().Sync(t.Context()); err == nil {
				t.Fatal("sync succeeded")
			}
			if now := r.memory(false); now > idle+hostileMemory {
				t.Errorf("the agent took %d KiB of memory at most, %d before", now>>10, idle>>10)
			}
			if now := r.stateSize(); now > held+hostileDisk {
				t.Errorf("the state directory has %d bytes, had %d", now, held)
			}
			for name, was := range before {
				if now := r.services(demoID)[name]; !sameTask(was, now) || now.Restarts != was.Restarts {
					t.Errorf("service %s changed: %+v was %+v", name, now, was)
				}
			}
			if got := r.status().Manifest.Version; got != version {
				t.Errorf("version %d was accepted, %d before", got, version)
			}
		})
	}
	r.t = t
	if a := r.answers(8090); a.Visit != visits+1 || a.Greeting != "Hello again" {
		t.Errorf("the application says %+v, want visit %d", a, visits+1)
	}
	r.WFM.Faults().Clear("")
	r.install(r.Deployment(demoID, map[string]any{"GREETING": "Good again"}))
}

// memory is the most that the agent's process had since it was asked to begin.
func (r *rig) memory(begin bool) int64 {
	r.t.Helper()
	if begin {
		check(r.t, os.WriteFile(r.procOf("clear_refs"), []byte("5"), 0))
	}
	counts := expect.Value(plant.Counts(r.Agent(), "status"))(r.t)
	return counts["VmHWM"] - counts["RssFile"] - counts["RssShmem"]
}

// stateSize is how many bytes the agent's own files have, without containerd's.
func (r *rig) stateSize() (sum int64) {
	r.t.Helper()
	check(r.t, filepath.Walk(r.StateDir(), func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() && !strings.Contains(path, "/containerd/") {
			sum += info.Size()
		}
		return nil //nolint:nilerr // what vanishes while it is looked at is no file
	}))
	return sum
}
