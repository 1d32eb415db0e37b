package runtime_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/leftovers"
)

const (
	rounds  = 10 // each ends with nothing
	abreast = 8  // sequences of a round, on projects that run side by side

	// seedVariable repeats a failure: the seed that it printed.
	seedVariable = "MARGOLITE_RANDOM_SEED"
)

// randomService is a service of a random project.
type randomService struct {
	n        int // changes the container
	job      bool
	replicas int
	networks []string // keys
	volume   string
	port     bool
	on       []string
}

// randomProject draws services that depend on those before them.
func randomProject(rng *rand.Rand) map[string]*randomService {
	services := make(map[string]*randomService)
	names := []string{"a", "b", "c"}[:1+rng.IntN(3)]
	for i, name := range names {
		s := &randomService{networks: [][]string{{"default"}, {"default"}, {"back"}, {"plant"}, {"back", "default"}, {"back", "plant"}}[rng.IntN(6)]}
		services[name] = s
		s.change(rng)
		for _, other := range names[:i] {
			if rng.IntN(3) == 0 {
				s.on = append(s.on, other)
			}
		}
	}
	return services
}

// change draws anew what an update may change.
func (s *randomService) change(rng *rand.Rand) {
	s.n = rng.IntN(3)
	s.job = rng.IntN(5) == 0
	s.port = rng.IntN(3) == 0
	s.volume = []string{"", "", "data", "more"}[rng.IntN(4)]
	s.replicas = []int{0, 1, 1, 1, 1, 1, 2}[rng.IntN(7)]
	if s.job {
		s.replicas = 1
	}
}

// update changes some of the services, and may drop or add one.
func update(rng *rand.Rand, services map[string]*randomService) map[string]*randomService {
	next := make(map[string]*randomService)
	fresh := randomProject(rng)
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s := *services[name]
		switch rng.IntN(4) {
		case 0:
			s.change(rng)
		case 1:
			if fresh[name] != nil {
				s = *fresh[name]
			}
		}
		s.on = slices.DeleteFunc(slices.Clone(s.on), func(on string) bool { return services[on] == nil })
		next[name] = &s
	}
	return next
}

// published says whether ports are: on an internal network none is.
func (s *randomService) published() bool {
	return s.port && !slices.Equal(s.networks, []string{"back"})
}

// random makes a Project of random services.
func (r *rig) random(e *runtime.Engine, name string, services map[string]*randomService) *runtime.Project {
	var file strings.Builder
	file.WriteString("services:\n")
	for _, service := range slices.Sorted(maps.Keys(services)) {
		s := services[service]
		fmt.Fprintf(&file, "  %s: {image: BUSYBOX, scale: %d, environment: {N: \"%d\"}, networks: [%s]",
			service, s.replicas, s.n, strings.Join(s.networks, ", "))
		if s.job {
			file.WriteString(", command: [\"true\"]")
		}
		if s.volume != "" {
			fmt.Fprintf(&file, ", volumes: [\"%s:/mnt\"]", s.volume)
		}
		if s.port {
			file.WriteString(", ports: [\"80\"]")
		}
		if len(s.on) > 0 {
			file.WriteString(", depends_on: {")
			for i, on := range s.on {
				condition := compose.ConditionStarted
				if services[on].job {
					condition = compose.ConditionCompleted
				}
				fmt.Fprintf(&file, "%s%s: {condition: %s}", []string{"", ", "}[min(i, 1)], on, condition)
			}
			file.WriteString("}")
		}
		file.WriteString("}\n")
	}
	file.WriteString("networks: {default: {}, back: {internal: true}, plant: {name: plant}}\n")
	file.WriteString("volumes: {data: {}, more: {}}\n")
	return r.load(e, name, file.String())
}

// verify says how a project differs from what it is to be.
func (r *rig) verify(e *runtime.Engine, p *runtime.Project, services map[string]*randomService) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if matches, err := e.Matches(r.Context(), p); err != nil || !matches {
		say("it does not match: %v", err)
	}
	found := r.replicas(e, p.Name)
	ending := func() bool { // a job has no time to settle, and may just run
		for service, s := range services {
			if s.job && found[service+"-1"].State == runtime.Running {
				return true
			}
		}
		return false
	}
	for end := time.Now().Add(patience); ending() && time.Now().Before(end); {
		found = r.replicas(e, p.Name)
	}
	for service, s := range services {
		for n := 1; n <= s.replicas; n++ {
			key := service + "-" + strconv.Itoa(n)
			c, ok := found[key]
			delete(found, key)
			want := runtime.Running
			if s.job {
				want = runtime.Done
			}
			switch {
			case !ok:
				say("%s is missing", key)
				continue
			case c.State != want:
				say("%s is %s, want %s", key, c.State, want)
			case c.Astray:
				say("%s is outside its sandbox", key)
			case !slices.Equal(networksOf(c), named(p, s.networks)):
				say("%s is on %v, want %v", key, networksOf(c), s.networks)
			case (len(c.Ports) > 0) != s.published():
				say("%s has ports %q", key, c.Ports)
			}
			if _, err := os.Stat(filepath.Join(r.state, "volumes", p.Name, s.volume)); err != nil && s.volume != "" {
				say("%s: %v", key, err)
			}
		}
	}
	for key := range found {
		say("%s is too many", key)
	}
	return wrong
}

// networksOf are the names of the networks that a container is on.
func networksOf(c runtime.ObservedContainer) []string {
	var names []string
	for _, n := range c.Sandbox.Attached {
		names = append(names, n.Network.Name)
	}
	return slices.Sorted(slices.Values(names))
}

// named are the names of networks on the device.
func named(p *runtime.Project, keys []string) []string {
	var names []string
	for _, key := range keys {
		names = append(names, p.Compose.Networks[key].Name)
	}
	return slices.Sorted(slices.Values(names))
}

// TestRandomSequences applies, updates and removes random projects, several side
// by side, and expects each time exactly what was asked for.
func TestRandomSequences(t *testing.T) {
	seed := rand.Uint64()
	if given := os.Getenv(seedVariable); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s=%d", seedVariable, seed)
	r := newRig(t, embeddedBackend())
	where := leftovers.Where{Client: r.client, Namespace: containerdtest.Namespace, StateDir: r.state, RunDir: r.run}
	e := r.engine()
	before := leftovers.Take(t, where)
	var mu sync.Mutex // loading is not what is tested
	load := func(name string, services map[string]*randomService) *runtime.Project {
		mu.Lock()
		defer mu.Unlock()
		return r.random(e, name, services)
	}
	many := rounds
	if testing.Short() {
		many = 1
	}
	for round := range many {
		stop := func() {}
		if round%2 == 0 {
			stop = r.supervise(e)
		}
		var sequences sync.WaitGroup
		for i := range abreast {
			sequences.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(round*abreast+i)))
				name := fmt.Sprintf("random%d", i)
				services := randomProject(rng)
				for step := range 2 + rng.IntN(2) {
					if step > 0 && rng.IntN(4) == 0 {
						if err := e.Remove(t.Context(), name); err != nil {
							t.Errorf("round %d, project %d, step %d: %v", round, i, step, err)
							return
						}
						services = randomProject(rng)
					} else if step > 0 {
						services = update(rng, services)
					}
					p := load(name, services)
					if err := e.Apply(t.Context(), p, runtime.ApplyOptions{}); err != nil {
						t.Errorf("round %d, project %d, step %d: %v", round, i, step, err)
						return
					}
					for _, wrong := range r.verify(e, p, services) {
						t.Errorf("round %d, project %d, step %d: %s", round, i, step, wrong)
					}
				}
				if err := e.Remove(t.Context(), name); err != nil {
					t.Errorf("round %d, project %d: %v", round, i, err)
				}
			})
		}
		sequences.Wait()
		stop()
		leftovers.Compare(t, where, before)
		expect.Require(t, !t.Failed(), "round %d; repeat with %s=%d", round, seedVariable, seed)
	}
}
