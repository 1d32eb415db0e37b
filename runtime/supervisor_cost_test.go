package runtime_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
)

// One container that ends costs what concerns its project: the others are not
// read, whatever their number.
func TestAnEventCostsWhatConcernsIt(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: counts of calls")
	}
	const projects, services = 16, 2
	onEach(t, func(t *testing.T, r *rig) {
		observer := r.engine() // is not counted
		c := r.count()
		e := r.engine()
		r.supervise(e)
		for n := range projects {
			r.apply(e, r.load(e, fmt.Sprintf("p%d", n), "services: {a: {image: BUSYBOX, restart: always}, b: {image: BUSYBOX}}"))
		}
		begun := r.settled(c)
		r.runsAgain(observer, "p7", "a", r.kill(observer, "p7", "a"))
		did := r.settled(c).since(begun)
		t.Logf("the event cost %s", did)
		expect.Equal(t, did.lists, 0, "lists of all for the event")
		const most = 10 * services // looks until it runs again, and what starting it reads
		expect.True(t, did.records <= most && did.tasks <= most, "the event cost %s, want at most %d records and tasks", did, most)
		if changed, all := e.Changed(); all || !slices.Equal(changed, []string{"p7"}) {
			t.Errorf("changed is %q (all: %v), want p7 alone", changed, all)
		}
	})
}

// Applying a project again of which nothing has changed reads the records once and
// asks once what each of its own containers does. It changes nothing and has nobody
// look once more.
func TestApplyingAgainCostsOneLook(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: counts of calls")
	}
	const services, others = 4, 3
	onEach(t, func(t *testing.T, r *rig) {
		var steps atomic.Int64
		r.onStep = func(string) { steps.Add(1) }
		c := r.count()
		e := r.engine()
		r.supervise(e)
		file := func(n int) string {
			text := "services:\n"
			for s := range n {
				text += fmt.Sprintf("  s%d: {image: BUSYBOX, command: [sleep, '1000'], restart: always}\n", s)
			}
			return text
		}
		r.apply(e, r.load(e, "other", file(others)))
		p := r.load(e, "same", file(services))
		r.apply(e, p)
		expect.Eventually(r, "it costs one look", func() bool { // what was just made may still be looked at for damage
			before, did := r.settled(c), steps.Load()
			r.apply(e, p)
			cost := r.settled(c).since(before)
			t.Logf("it cost %s and %d steps", cost, steps.Load()-did)
			return cost.lists <= 1 && cost.records <= services+others && cost.tasks <= services && steps.Load() == did
		})
	})
}

// What was damaged is repaired by Apply, also while the supervisor is about to.
func TestApplyingAgainRepairsDamage(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		r.supervise(e)
		p := r.load(e, "same", "services: {web: {image: BUSYBOX, command: [sleep, '1000'], restart: always, ports: ['18141:80']}}")
		r.apply(e, p)
		for range 3 {
			for _, bridge := range bridges(t) {
				if out, err := exec.Command("ip", "link", "delete", bridge).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			_ = exec.Command("nft", "delete", "table", "ip", "margolite").Run() // where nft is installed
			r.apply(e, p)
			expect.Eventually(r, "it reaches its gateway", func() bool {
				_, err := r.tryInside(r.containers(e, "same")["web"], "ping -c 1 -w 1 $(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p')")
				return err == nil
			})
		}
	})
}

// Finding out that nothing has changed reads the records of the project alone.
func TestMatchingReadsOnlyTheProject(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		c := r.count()
		e := r.engine()
		r.apply(e, r.load(e, "other", "services: {a: {image: BUSYBOX}, b: {image: BUSYBOX}}"))
		p := r.load(e, "same", "services: {a: {image: BUSYBOX}}")
		r.apply(e, p)
		before := c.count()
		expect.Equal(t, expect.Value(e.Matches(t.Context(), p))(t), true, "matches")
		if cost := c.count().since(before); cost.records > 1 || cost.tasks > 0 {
			t.Errorf("it cost %s, want one record", cost)
		}
	})
}

// A probe of a health check ends a process in a container, and no container.
func TestAProbeCostsNoLook(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: counts of calls")
	}
	const idle = 8
	onEach(t, func(t *testing.T, r *rig) {
		c := r.count()
		e := r.engine()
		r.supervise(e)
		r.apply(e, r.change(e, "probed", `
services:
  app:
    image: BUSYBOX
    volumes: ["data:/data"]
    healthcheck: {test: [CMD, sh, -c, "echo >> /data/probes"], interval: 100ms}
  idle: {image: BUSYBOX}
volumes: {data: {}}
`, func(services map[string]*compose.Service) { services["idle"].Replicas = idle }))
		probes := func() int { return strings.Count(r.volume("probed/data/probes"), "\n") }
		var cost counts
		expect.Eventually(r, "probes cost no look at the project", func() bool {
			before, seen := c.count(), probes()
			expect.Eventually(r, "it is probed", func() bool { return probes() >= seen+4 })
			cost = c.count().since(before)
			return cost.lists == 0 && cost.records < idle // a look reads the records of all containers
		})
		t.Logf("four probes cost %s", cost)
	})
}

// What the runtime remembers of a project goes with it.
func TestNothingIsRememberedOfProjectsThatAreGone(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	r.supervise(e)
	for n := range 3 {
		name := fmt.Sprint("gone", n)
		r.apply(e, r.load(e, name, "services: {a: {image: BUSYBOX, restart: always}}"))
		r.kill(e, name, "a")
		expect.Check(t, e.Remove(t.Context(), name))
		r.load(e, fmt.Sprint("loaded", n), "services: {a: {image: BUSYBOX}}")
		expect.Check(t, e.Remove(t.Context(), fmt.Sprint("loaded", n)))
	}
	expect.Eventually(r, "nothing is remembered", func() bool {
		for what, n := range e.Remembered() {
			if n > 0 {
				t.Logf("%d %s", n, what)
				return false
			}
		}
		return true
	})
}
