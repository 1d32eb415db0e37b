package faults_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/test/faults"
	"github.com/margolite/margolite/test/faults/medium"
	"github.com/margolite/margolite/test/plant"
)

var (
	seed  = flag.Uint64("faults.seed", 0, "of everything that is random; 0: a fixed one for each test")
	chaos = flag.Duration("faults.time", 0, "how long TestChaos goes on")
	only  = flag.String("faults.kind", "", "of faults that TestChaos injects; empty: all in turn")
)

func TestMain(m *testing.M) { os.Exit(plant.RunTests(m, faults.Build, nil)) }

// long says why a test is left out in the short form.
func long(t *testing.T, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("in make test-all: " + why)
	}
}

// installed is a rig that runs everything, with a seed of its own unless one is
// given to all tests.
func installed(t *testing.T, fixed uint64, change func(*faults.Options)) *faults.Rig {
	t.Helper()
	o := faults.Options{Programs: plant.ProgramsDir(), Seed: cmp.Or(*seed, fixed)}
	change(&o)
	r := faults.New(t, o)
	r.InstallAll()
	return r
}

// kill -9 at any time, while deployments are installed, updated, broken and
// removed.
func TestKilledAtAnyTime(t *testing.T) {
	r := installed(t, 1, plain)
	for range 3 {
		r.Kills(6)
	}
	r.End()
}

// The power goes at any time, with all, some or nothing of what the medium had
// in its cache.
func TestThePowerGoesAtAnyTime(t *testing.T) {
	long(t, "power cuts")
	r := installed(t, 2, media)
	for range 3 {
		r.PowerCuts(4)
	}
	r.End()
}

// A write or a flush of the medium fails.
func TestTheMediumFails(t *testing.T) {
	long(t, "failures of the medium")
	r := installed(t, 3, media)
	r.IOErrors(4)
	r.End()
}

// Somebody fills the medium.
func TestTheMediumIsFull(t *testing.T) {
	long(t, "a full medium")
	r := installed(t, 4, media)
	r.Fill(3)
	r.SlowFlushes(300*time.Millisecond, 2)
	r.End()
}

// What is around the device goes wrong.
func TestTroublesAround(t *testing.T) {
	troubles(t, 5, func(name string) bool { return !strings.HasPrefix(name, "answers") })
}

// The WFM and the registry answer wrongly, or hardly.
func TestWrongAnswers(t *testing.T) {
	troubles(t, 7, func(name string) bool { return strings.HasPrefix(name, "answers") })
}

func troubles(t *testing.T, fixed uint64, wanted func(string) bool) {
	t.Helper()
	long(t, "troubles around the device")
	r := installed(t, fixed, plain)
	r.EachTrouble(wanted)
	r.End()
}

// A containerd of the system is killed, and what is around the device goes wrong.
func TestTroublesWithAContainerdOfTheSystem(t *testing.T) {
	long(t, "Debian's containerd")
	r := installed(t, 6, system)
	r.Kills(5)
	r.Trouble("containerd is killed")
	r.Trouble("a shim is killed")
	r.Trouble("containerd is killed")
	r.End()
}

// debian is the containerd of the system.
const debian = "/usr/bin/containerd"

// kinds are what TestChaos does with rigs that have something to lose. The number of
// a round is one of numbers, and follows from the seed: from one that is a multiple of
// 1000 on they are counted.
var kinds = []struct {
	name   string
	change func(*faults.Options)
	round  func(r *faults.Rig, n int)
}{
	{"kills", plain, func(r *faults.Rig, _ int) { r.Kills(10) }},
	{"external", system, func(r *faults.Rig, _ int) { r.Kills(5); r.Troubles(2) }},
	{"around", plain, func(r *faults.Rig, _ int) { r.Troubles(4) }},
	{"power", media, func(r *faults.Rig, _ int) { r.PowerCuts(5) }},
	{"store-damaged", media, func(r *faults.Rig, _ int) { r.Damage("store-damaged", 5) }},
	{"meta-damaged", media, func(r *faults.Rig, _ int) { r.Damage("meta-damaged", 5) }},
	{"meta-deleted", media, func(r *faults.Rig, _ int) { r.Damage("meta-deleted", 5) }},
	{"blobs-torn", media, func(r *faults.Rig, _ int) { r.Damage("blobs-torn", 5) }},
	{"errors", media, func(r *faults.Rig, _ int) { r.IOErrors(4) }},
	{"full", media, func(r *faults.Rig, _ int) { r.Fill(3) }},
	{"each-write", media, func(r *faults.Rig, n int) { r.IOError(medium.Fault{Skip: n, Times: n % 2}) }},
	{"each-flush", media, func(r *faults.Rig, n int) { r.IOError(medium.Fault{Flush: true, Skip: n, Times: n % 2}) }},
	{"each-block", media, func(r *faults.Rig, n int) { r.FillTo(int64(n) * 16 * medium.BlockBytes) }},
}

func plain(*faults.Options) {}

func system(o *faults.Options) { o.Containerd = debian }

func media(o *faults.Options) { o.Medium = true }

// The same, without an end to it.
func TestChaos(t *testing.T) {
	if *chaos == 0 {
		t.Skip("it takes as long as it is told: make chaos TIME=10m")
	}
	first := cmp.Or(*seed, uint64(time.Now().Unix()))
	const rounds, numbers = 5, 600 // more than a round has writes, as a rule
	total := map[string]int{}
	for end, i := time.Now().Add(*chaos), uint64(0); time.Now().Before(end) && !t.Failed(); i++ {
		next := first + i
		kind := kinds[next%uint64(len(kinds))]
		for _, k := range kinds {
			if k.name == *only {
				kind = k
			}
		}
		t.Run(fmt.Sprintf("%s %d", kind.name, next), func(t *testing.T) {
			r := installed(t, next, func(o *faults.Options) {
				kind.change(o)
				o.Seed = next
			})
			for i := range rounds {
				kind.round(r, (int(next%1000)*rounds+i)%numbers)
			}
			r.End()
			total[kind.name] += r.Faults()
		})
	}
	t.Logf("from seed %d on, kills and cuts of the power: %v", first, total)
}
