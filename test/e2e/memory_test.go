package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/demoapp/demoimage"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

const (
	smallMemory = 64 << 20  // bytes, for agent, shims and runc
	roomyImage  = 160 << 20 // bytes of an image that is larger than that
	// What the agent may keep while it has nothing to do. The program here is larger
	// than what users have: it is not built for size.
	idleMemory, idleAnonymous = 20 << 20, 8 << 20
)

// With 64 MB the agent starts, and at rest keeps no more than it needs; an image
// that is larger than the memory is installed, updated and removed, and nothing is
// killed for want of memory.
func TestAMachineOf64MBIsEnough(t *testing.T) {
	long(t, "a small machine")
	group, err := plant.NewMemoryGroup("small-machine", smallMemory)
	if errors.Is(err, plant.ErrNoMemoryLimit) {
		t.Skip("needs control groups that limit memory:", err)
	}
	expect.Check(t, err)
	t.Cleanup(func() { expect.Check(t, group.Close(context.WithoutCancel(t.Context()))) })
	r := newRig(t, "embedded")
	program := expect.Value(plant.DemoProgram())(t)
	for i, version := range []string{"3.0.0", "4.0.0"} {
		image := expect.Value(demoimage.FromProgram(program, demoimage.Options{Version: version, Padding: roomyImage + i}))(t)
		expect.Check(t, r.Push(t.Context(), demoimage.Repository, version, image))
	}
	wrapper := filepath.Join(t.TempDir(), "entered")
	expect.Check(t, group.Wrap(filepath.Join(plant.ProgramsDir(), "margolite"), wrapper))
	r.Upgrade(wrapper)
	r.running()
	agent := r.Agent()
	in := expect.Value(group.Processes())(t)
	expect.Require(t, slices.Contains(in, agent), "the agent, process %d, is not in the group of %v", agent, in)
	plant.Require(r.t, "the agent gives back what it does not need", func() error {
		resident, anonymous, err := r.holds(agent)
		if err == nil && (resident > idleMemory || anonymous > idleAnonymous) {
			err = fmt.Errorf("%d bytes are resident, %d of them anonymous", resident, anonymous)
		}
		return err
	})

	r.install(r.Deployment(demoID, map[string]any{"TAG": "3.0.0"}))
	expect.Equal(t, r.answers(8090).Version, "3.0.0", "the application")
	r.install(r.Deployment(demoID, map[string]any{"TAG": "4.0.0", "GREETING": "Servus"}))
	if a := r.answers(8090); a.Version != "4.0.0" || a.Greeting != "Servus" {
		t.Errorf("after the update it says %+v", a)
	}
	r.await(demoID, margo.Removed, r.remove(demoID))

	if r.Agent() != agent || !r.Running() {
		t.Errorf("the agent is process %d, was %d", r.Agent(), agent)
	}
	if n, err := group.Killed(); n > 0 || err != nil {
		t.Errorf("the kernel killed %d processes for want of memory: %v", n, err)
	}
}

// holds is how much memory of a process is resident, and how much of that is of no
// file.
func (r *rig) holds(pid int) (resident, anonymous int64, err error) {
	counts, err := plant.Counts(pid, "smaps_rollup")
	if err == nil && counts["Rss"] == 0 {
		err = errors.New("the kernel does not tell what is resident")
	}
	return counts["Rss"], counts["Anonymous"], err
}
