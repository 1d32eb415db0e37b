package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/demoapp/demoimage"
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
	group := newMemoryGroup(t, smallMemory)
	r := newRig(t, "embedded")
	program, err := os.ReadFile(filepath.Join(programs.dir, demoProgram))
	check(t, err)
	for i, version := range []string{"3.0.0", "4.0.0"} {
		image, err := demoimage.FromProgram(program, demoimage.Options{Version: version, Padding: roomyImage + i})
		check(t, err)
		check(t, r.Push(t.Context(), demoimage.Repository, version, image))
	}
	r.Upgrade(group.entered(filepath.Join(programs.dir, "margolite")))
	r.running()
	agent := r.Agent()
	if in := group.processes(); !strings.Contains(in, fmt.Sprintf("%d\n", agent)) {
		t.Fatalf("the agent, process %d, is not in the group of %q", agent, in)
	}
	r.eventually("the agent gives back what it does not need", func() error {
		resident, anonymous, err := r.holds(agent)
		if err == nil && (resident > idleMemory || anonymous > idleAnonymous) {
			err = fmt.Errorf("%d bytes are resident, %d of them anonymous", resident, anonymous)
		}
		return err
	})

	r.install(r.Deployment(demoID, map[string]any{"TAG": "3.0.0"}))
	if a := r.answers(8090); a.Version != "3.0.0" {
		t.Errorf("the application says %+v", a)
	}
	r.install(r.Deployment(demoID, map[string]any{"TAG": "4.0.0", "GREETING": "Servus"}))
	if a := r.answers(8090); a.Version != "4.0.0" || a.Greeting != "Servus" {
		t.Errorf("after the update it says %+v", a)
	}
	r.await(demoID, margo.Removed, r.remove(demoID))

	if r.Agent() != agent || !r.Running() {
		t.Errorf("the agent is process %d, was %d", r.Agent(), agent)
	}
	if n := group.killed(); n > 0 {
		t.Errorf("the kernel killed %d processes for want of memory", n)
	}
}

// holds is how much memory of a process is resident, and how much of that is of no
// file.
func (r *rig) holds(pid int) (resident, anonymous int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, 0, err
	}
	of := func(name string) int64 {
		_, rest, _ := strings.Cut(string(text), "\n"+name+":")
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return 0
		}
		n, _ := strconv.ParseInt(fields[0], 10, 64)
		return n << 10
	}
	if resident = of("Rss"); resident == 0 {
		return 0, 0, errors.New("the kernel does not tell what is resident")
	}
	return resident, of("Anonymous"), nil
}

// memoryGroup is a control group with a limit of memory, of version 1 or 2.
type memoryGroup struct {
	t       *testing.T
	dir     string
	version int
}

func newMemoryGroup(t *testing.T, limit int64) *memoryGroup {
	t.Helper()
	const root = "/sys/fs/cgroup"
	g := &memoryGroup{t: t, version: 1, dir: filepath.Join(root, "memory")}
	limits := map[string]int64{"memory.limit_in_bytes": limit, "memory.swappiness": 0}
	if _, err := os.Stat(g.dir); err != nil {
		g.version, g.dir = 2, root
		limits = map[string]int64{"memory.max": limit, "memory.swap.max": 0}
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			t.Skipf("memory cannot be limited here: %v", err)
		}
	}
	g.dir = filepath.Join(g.dir, "small-machine-"+strconv.Itoa(os.Getpid()))
	check(t, os.Mkdir(g.dir, 0o755))
	t.Cleanup(func() {
		check(t, plant.Eventually(context.WithoutCancel(t.Context()), func() error { return os.Remove(g.dir) }))
	})
	for name, value := range limits {
		err := os.WriteFile(filepath.Join(g.dir, name), []byte(strconv.FormatInt(value, 10)), 0)
		if err != nil && value > 0 { // there may be no account of swap
			t.Fatal(err)
		}
	}
	return g
}

// entered is a program that starts another one in the group.
func (g *memoryGroup) entered(program string) string {
	g.t.Helper()
	wrapper := filepath.Join(g.t.TempDir(), "entered")
	check(g.t, os.WriteFile(wrapper, fmt.Appendf(nil, "#!/bin/sh\necho $$ >%s/cgroup.procs\nexec %s \"$@\"\n", g.dir, program), 0o755))
	return wrapper
}

func (g *memoryGroup) processes() string { return g.read("cgroup.procs") }

// killed is how many processes the kernel has killed in the group.
func (g *memoryGroup) killed() int {
	g.t.Helper()
	events := g.read(map[int]string{1: "memory.oom_control", 2: "memory.events"}[g.version])
	_, count, ok := strings.Cut(events, "oom_kill ")
	if !ok {
		g.t.Fatalf("the kernel does not tell whom it killed: %q", events)
	}
	n, err := strconv.Atoi(strings.Fields(count)[0])
	check(g.t, err)
	return n
}

func (g *memoryGroup) read(file string) string {
	g.t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	check(g.t, err)
	return string(text)
}
