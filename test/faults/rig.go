package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/faults/medium"
	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/leftovers"
	"github.com/margolite/margolite/test/plant"
)

// What Build makes in its directory.
const (
	agent = "margolite"
	image = "medium"
)

const (
	// mediumBytes is the size of the device's medium.
	mediumBytes = 192 << 20
	// settle is for how long services run before they count as installed.
	settle = 100 * time.Millisecond
	// patience bounds each wait for what has to be true: far more than a slow or busy
	// machine needs, and no measure of the agent.
	patience = 5 * time.Minute
)

// versions are those that there are images of.
var versions = [2]string{"1.0.0", "2.0.0"}

// Build makes what rigs run, once for all of them. It needs the go command.
func Build(ctx context.Context, dir string) error {
	return errors.Join(plant.BuildAgent(ctx, dir), plant.BuildDemo(ctx, dir), medium.Format(filepath.Join(dir, image), mediumBytes))
}

// Options of a rig.
type Options struct {
	Programs   string // where Build made them
	Seed       uint64 // of everything that is random
	Containerd string // program of an external containerd; empty: the embedded one
	Medium     bool   // the device has a medium of its own, whose faults can be chosen
}

// Rig is a plant under test. What it finds wrong fails the test.
type Rig struct {
	*plant.Plant
	T    testing.TB
	Rand *rand.Rand

	options     Options
	dir         string
	deployments []*deployment
	before      leftovers.Snapshot // of the machine, when the agent ran for the first time
	kills       int                // of the agent, and cuts of the power, up to now
	failures    int                // times that the medium failed or was full, up to now
	accepted    uint64             // the manifest version that the agent last said it has accepted

	disk    *medium.Disk // nil: the device has no medium of its own
	mounted *medium.Mounted
	mounts  int // up to now
}

// New makes a rig whose agent runs and has nothing deployed.
func New(t testing.TB, o Options) *Rig {
	t.Helper()
	t.Logf("seed %d", o.Seed)
	dir := expect.Value(os.MkdirTemp("/tmp", "faults-"))(t) // paths of sockets are short
	r := &Rig{T: t, Rand: rand.New(rand.NewPCG(o.Seed, 0)), options: o, dir: dir}
	t.Cleanup(r.close)
	application := expect.Value(plant.LoadApplication(t.Context(), versions[:]...))(t)
	po := plant.Options{Dir: dir, Margolite: filepath.Join(o.Programs, agent), Containerd: o.Containerd, Application: application}
	if o.Medium {
		r.disk = expect.Value(medium.Load(filepath.Join(o.Programs, image)))(t)
		check(t, os.Mkdir(r.mountpoint(), 0o755))
		r.mount()
		po.State = filepath.Join(r.mountpoint(), "state")
	}
	r.Plant = expect.Value(plant.New(t.Context(), po))(t)
	r.pushComponents()
	r.deployments = r.deploymentsOf()
	r.named()
	check(t, r.Configure(r.settings()))
	check(t, r.Run(t.Context(), r.environment()))
	r.before = r.Look(t)
	return r
}

// close shows what led to a failure and ends everything.
func (r *Rig) close() {
	if r.Plant == nil {
		return
	}
	if r.T.Failed() {
		if r.Running() { // with what it does at this moment
			_ = unix.Kill(r.Agent(), unix.SIGQUIT)
			_ = r.Ended() // or is killed
		}
		log, _ := os.ReadFile(r.LogFile())
		r.T.Logf("seed %d; agent's log:\n%s", r.options.Seed, log[max(0, len(log)-96<<10):])
		if keep := os.Getenv("MARGOLITE_FAULTS_LOGS"); keep != "" {
			_ = os.WriteFile(filepath.Join(keep, fmt.Sprintf("agent-%d.log", r.options.Seed)), log, 0o600)
		}
	}
	if r.disk != nil {
		r.disk.Mend()
	}
	r.Kill()
	r.PowerOff()
	if r.disk != nil {
		r.disk.Cut(medium.All, r.Rand)
		check(r.T, r.mounted.Forget())
	}
	check(r.T, errors.Join(isolated.ForgetNetwork(), r.Close(), os.RemoveAll(r.dir)))
}

// mountpoint is where the device's medium is.
func (r *Rig) mountpoint() string { return filepath.Join(r.dir, "medium") }

// mount mounts the disk as it is now.
func (r *Rig) mount() {
	r.T.Helper()
	r.mounts++
	r.mounted = expect.Value(r.disk.Mount(filepath.Join(r.dir, fmt.Sprintf("disk%d", r.mounts)), r.mountpoint()))(r.T)
}

// Restart starts the agent again, which was killed or has ended. It does not
// wait for it.
func (r *Rig) Restart() {
	r.T.Helper()
	check(r.T, r.Start(r.environment()))
}

// environment is what the agent is told beside its configuration.
func (r *Rig) environment() string { return "MARGOLITE_CLOCK=" + r.clock() }

// KillAgent is kill -9 and a start.
func (r *Rig) KillAgent() {
	r.T.Helper()
	r.kills++
	r.Kill()
	r.Restart()
}

// CutPower takes the power away from the device, with what a disk makes of its
// cache then, and gives it back: the file system is as the cut left it, and is
// repaired first where the kernel found it to be in error.
func (r *Rig) CutPower(loss medium.Loss) {
	r.T.Helper()
	r.cut(loss, func(*Rig) {})
}

// cut is CutPower; what it is given happens before the power is back.
func (r *Rig) cut(loss medium.Loss, meanwhile func(*Rig)) {
	r.T.Helper()
	r.kills++
	var left *medium.Disk
	if r.disk != nil {
		left = r.disk.Cut(loss, r.Rand) // at this moment, whatever is going on
	}
	r.Kill()
	r.PowerOff()
	check(r.T, isolated.ForgetNetwork())
	failed := false
	if r.disk != nil {
		failed = r.disk.Counts().Failed > 0
		check(r.T, r.mounted.Forget())
		r.disk = left
		if failed {
			r.repair()
		}
		r.mount()
	}
	r.storeIsWhole(failed)
	meanwhile(r)
	r.Restart()
}

// repair has the file system of the medium checked, as a boot after an error
// does. The power is off.
func (r *Rig) repair() {
	r.T.Helper()
	file := filepath.Join(r.dir, "repair")
	check(r.T, r.disk.Save(file))
	check(r.T, medium.Check(file))
	r.disk = expect.Value(medium.Load(file))(r.T)
	check(r.T, os.Remove(file))
}

// pause waits for some of the time given, at random.
func (r *Rig) pause(most time.Duration) {
	select {
	case <-time.After(time.Duration(r.Rand.Int64N(int64(most)))):
	case <-r.T.Context().Done():
	}
}

// free is how many bytes are free on the medium.
func (r *Rig) free() int64 {
	r.T.Helper()
	var s unix.Statfs_t
	check(r.T, unix.Statfs(r.mountpoint(), &s))
	return int64(s.Bfree) * s.Bsize
}

var check = expect.Check
