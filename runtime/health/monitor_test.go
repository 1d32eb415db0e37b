package health_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/test/expect"
)

// script answers probes: by how long after the start they come.
type script func(since time.Duration) int

// watched runs a monitor on a container with the check and returns what became
// of its state over time, as "2s healthy".
func watched(t *testing.T, c compose.Healthcheck, age, length time.Duration, answer script) (states []string, probes []time.Duration, last health.Status) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		started := begin.Add(-age)
		var m *health.Monitor
		m = health.New(health.Options{
			Exec: func(ctx context.Context, container string, timeout time.Duration, command []string, out io.Writer) (int, error) {
				ctx, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				probes = append(probes, time.Since(begin))
				code := answer(time.Since(started))
				fmt.Fprintf(out, "%s says %d\n", container, code)
				if code < 0 {
					<-ctx.Done()
					return -1, ctx.Err()
				}
				return code, nil
			},
			Changed: func(string) {
				s := m.Status("app")
				states = append(states, fmt.Sprintf("%s %s", time.Since(begin), s.State))
			},
		})
		m.Tend("p", []health.Target{{Container: "app", Process: 1, Started: started, Check: c}})
		time.Sleep(length)
		last = m.Status("app")
		m.Close()
	})
	return states, probes, last
}

func TestStatesFollowTheProbes(t *testing.T) {
	test := []string{"CMD", "true"}
	const s = time.Second
	failing := func(time.Duration) int { return 1 }
	from := func(d time.Duration) script {
		return func(since time.Duration) int {
			if since >= d {
				return 0
			}
			return 1
		}
	}
	tests := []struct {
		name   string
		check  compose.Healthcheck
		age    time.Duration
		answer script
		states []string
	}{
		{"healthy at once, where it is", compose.Healthcheck{Test: test}, 0, from(0), []string{"0s healthy"}},
		{"healthy soon, where it takes a moment", compose.Healthcheck{Test: test}, 0, from(s), []string{"1.75s healthy"}},
		{"unhealthy after as many failures as are allowed, not counting those that Docker would not have seen", compose.Healthcheck{Test: test, Interval: 10 * s, Retries: 2}, 0, failing, []string{"20s unhealthy"}},
		{"three retries, 30 s apart", compose.Healthcheck{Test: test}, 0, failing, []string{"1m30s unhealthy"}},
		{"failures within the start period do not count", compose.Healthcheck{Test: test, Interval: 10 * s, Retries: 1, StartPeriod: 60 * s, StartInterval: 5 * s}, 0, failing, []string{"1m0s unhealthy"}},
		{"the start period began with the process", compose.Healthcheck{Test: test, Interval: 10 * s, Retries: 1, StartPeriod: 60 * s}, 50 * s, failing, []string{"10s unhealthy"}},
		{"within the start period a success ends the starting", compose.Healthcheck{Test: test, Interval: 30 * s, StartPeriod: 60 * s, StartInterval: 2 * s}, 0, from(20 * s), []string{"20s healthy"}},
		{"what was healthy fails also within the start period", compose.Healthcheck{Test: test, Interval: s, Retries: 2, StartPeriod: time.Hour}, 0, func(since time.Duration) int {
			if since < 10*s {
				return 0
			}
			return 1
		}, []string{"0s healthy", "11s unhealthy"}},
		{"it recovers", compose.Healthcheck{Test: test, Interval: s, Retries: 1}, 0, func(since time.Duration) int {
			if since > 3*s && since < 6*s {
				return 1
			}
			return 0
		}, []string{"0s healthy", "4s unhealthy", "6s healthy"}},
		{"a probe that does not end is a failure", compose.Healthcheck{Test: test, Interval: 10 * s, Timeout: s, Retries: 1}, 0, func(time.Duration) int { return -1 }, []string{"11s unhealthy"}},
		{"a check without a command is a failure", compose.Healthcheck{Test: []string{"CMD"}, Interval: 10 * s, Retries: 1}, 0, from(0), []string{"10s unhealthy"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			states, _, _ := watched(t, test.check, test.age, 150*s, test.answer)
			expect.Equal(t, states, test.states, "states")
		})
	}
}

func TestProbesComeAtTheirTimes(t *testing.T) {
	const s = time.Second
	_, probes, last := watched(t, compose.Healthcheck{Test: []string{"CMD-SHELL", "x"}, Interval: 10 * s}, 0, 31*s, func(time.Duration) int { return 0 })
	expect.Equal(t, probes, []time.Duration{0, 10 * s, 20 * s, 30 * s}, "probes at")
	expect.True(t, last.Code == 0 && last.Output == "app says 0" && last.Failures == 0 && !last.Probed.IsZero(), "last is %+v", last)
}

func TestWhatIsNotToBeProbedIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		counts := map[string]int{}
		probed := func() map[string]int {
			mu.Lock()
			defer mu.Unlock()
			return maps.Clone(counts)
		}
		m := health.New(health.Options{Exec: func(_ context.Context, container string, _ time.Duration, _ []string, _ io.Writer) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			counts[container]++
			return 0, nil
		}})
		check := compose.Healthcheck{Test: []string{"CMD", "x"}, Interval: time.Second}
		target := func(id string, process int) health.Target {
			return health.Target{Container: id, Process: process, Started: time.Now(), Check: check}
		}
		off := target("off", 1)
		off.Check.Test = []string{"NONE"}
		m.Tend("p", []health.Target{target("a", 1), target("b", 1), off})
		m.Tend("q", []health.Target{target("c", 1)})
		time.Sleep(500 * time.Millisecond)
		m.Tend("p", []health.Target{target("a", 1)}) // goes on; b does not
		time.Sleep(10 * time.Second)
		if got := probed(); got["a"] != 11 || got["b"] != 1 || got["c"] != 11 || got["off"] != 0 {
			t.Errorf("probed %v", got)
		}
		expect.Equal(t, m.Status("b").State, health.Starting, "state of what is not probed any more")
		m.Tend("p", []health.Target{target("a", 2)})
		expect.Equal(t, m.Status("a").State, health.Starting, "first state of another process")
		synctest.Wait()
		expect.Equal(t, m.Status("a").State, health.Healthy, "state of another process")
		m.Close()
		m.Tend("p", []health.Target{target("z", 1)})
		time.Sleep(time.Minute)
		if got := probed(); got["z"] != 0 || got["a"] > 13 {
			t.Errorf("probed after the end: %v", got)
		}
	})
}

func TestOutputIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := health.New(health.Options{Exec: func(_ context.Context, _ string, _ time.Duration, _ []string, out io.Writer) (int, error) {
			for range 1000 {
				_, _ = io.WriteString(out, strings.Repeat("x", 100)+"\xff\n")
			}
			return 0, errors.New("and could not be run")
		}})
		defer m.Close()
		m.Tend("p", []health.Target{{Container: "a", Process: 1, Check: compose.Healthcheck{Test: []string{"CMD", "x"}}}})
		synctest.Wait()
		s := m.Status("a")
		if len(s.Output) > 4<<10 || !strings.HasPrefix(s.Output, "xxx") || strings.Contains(s.Output, "\xff") || s.Code != -1 {
			t.Errorf("%d bytes, code %d", len(s.Output), s.Code)
		}
	})
}

// Probes that hang in some containers keep nobody from knowing about others.
func TestProbesThatHangHoldUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := health.New(health.Options{Exec: func(ctx context.Context, container string, _ time.Duration, _ []string, _ io.Writer) (int, error) {
			if container != "well" {
				<-ctx.Done()
			}
			return 0, nil
		}})
		defer m.Close()
		check := compose.Healthcheck{Test: []string{"CMD", "x"}, Timeout: time.Hour}
		for n := range 20 {
			id := fmt.Sprintf("hangs-%d", n)
			m.Tend(id, []health.Target{{Container: id, Process: 1, Started: time.Now(), Check: check}})
		}
		m.Tend("p", []health.Target{{Container: "well", Process: 1, Started: time.Now(), Check: check}})
		time.Sleep(time.Minute)
		expect.Equal(t, m.Status("well").State, health.Healthy, "state after a minute")
	})
}

// A probe that printed a lot and hung is told from one that ended.
func TestAProbeThatPrintedALotAndHungIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := health.New(health.Options{Exec: func(ctx context.Context, _ string, timeout time.Duration, _ []string, out io.Writer) (int, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			_, _ = io.WriteString(out, strings.Repeat("x", 5<<10))
			<-ctx.Done()
			return -1, ctx.Err()
		}})
		defer m.Close()
		m.Tend("p", []health.Target{{Container: "a", Process: 1, Check: compose.Healthcheck{Test: []string{"CMD", "x"}, Timeout: 3 * time.Second}}})
		time.Sleep(5 * time.Second)
		s := m.Status("a")
		if len(s.Output) > 4<<10 || !strings.HasPrefix(s.Output, "xxx") || !strings.HasSuffix(s.Output, "did not end within 3s") {
			t.Errorf("%d bytes: ...%s", len(s.Output), s.Output[max(0, len(s.Output)-100):])
		}
	})
}

// What keeps a probe from being run says nothing about the container.
func TestAProbeThatWasNotTriedIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		m := health.New(health.Options{Exec: func(context.Context, string, time.Duration, []string, io.Writer) (int, error) {
			if tries++; tries == 1 {
				return 0, nil
			}
			return -1, fmt.Errorf("too many run: %w", health.ErrNotTried)
		}})
		defer m.Close()
		check := compose.Healthcheck{Test: []string{"CMD", "x"}, Interval: time.Second, Retries: 1}
		m.Tend("p", []health.Target{{Container: "a", Process: 1, Started: time.Now(), Check: check}})
		time.Sleep(time.Minute)
		s := m.Status("a")
		if s.State != health.Healthy || s.Failures != 0 || s.Code != 0 || !strings.Contains(s.Skipped, "too many run") {
			t.Errorf("after %d tries it is %+v", tries, s)
		}
	})
}
