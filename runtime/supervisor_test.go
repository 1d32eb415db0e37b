package runtime_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/expect"
)

// touch makes a file in a volume.
func (r *rig) touch(parts ...string) {
	r.Helper()
	path := filepath.Join(append([]string{r.state, "volumes"}, parts...)...)
	expect.Check(r, os.WriteFile(path, nil, 0o644))
}

func (r *rig) poked(e *runtime.Engine) {
	r.Helper()
	expect.Receive(r, "the change is told", e.Changes())
}

func TestSupervisorKeepsToTheRestartPolicy(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		r.supervise(e)
		// Each waits for its sign, then ends with its code, again and again.
		const script = `["sh", "-c", "echo run; while ! test -e /data/go; do sleep 0.1; done; exit CODE"]`
		file := `
services:
  always: {image: BUSYBOX, restart: always, volumes: ["data:/data"], command: SCRIPT0}
  twice: {image: BUSYBOX, restart: "on-failure:2", volumes: ["data:/data"], command: SCRIPT7}
  never: {image: BUSYBOX, volumes: ["data:/data"], command: SCRIPT7}
  job: {image: BUSYBOX, restart: on-failure, volumes: ["data:/data"], command: SCRIPT0}
volumes: {data: {}}
`
		for _, code := range []string{"0", "7"} {
			file = strings.ReplaceAll(file, "SCRIPT"+code, strings.Replace(script, "CODE", code, 1))
		}
		r.apply(e, r.load(e, "policy", file))
		r.touch("policy", "data", "go")
		r.poked(e)

		runs := func(service string) int { return strings.Count(r.logs(e, "policy", service), "run\n") }
		state := func(service string) runtime.State { return r.containers(e, "policy")[service].State }
		expect.Eventually(r, "a service that always runs is restarted again and again", func() bool { return runs("always") >= 4 })
		expect.Eventually(r, "a service is restarted after failures, as often as it says", func() bool { return runs("twice") == 3 && state("twice") == runtime.Stopped })
		expect.Eventually(r, "a service without policy stays down", func() bool { return state("never") == runtime.Stopped })
		expect.Eventually(r, "a job that ended well is recorded", func() bool { return r.containers(e, "policy")["job"].Exited })
		expect.Equal(t, runs("never"), 1, "runs of the service without policy")
		expect.Equal(t, runs("job"), 1, "runs of the job")
		expect.Equal(t, runs("twice"), 3, "runs of the service that may fail twice")
		expect.Equal(t, r.containers(e, "policy")["never"].ExitCode, 7, "exit code")
	})
}

// A device may find its nameserver after its containers were started.
func TestRunningContainersFollowTheDevicesResolver(t *testing.T) {
	r := newRig(t, embeddedBackend())
	device := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(content string) {
		expect.Check(t, os.WriteFile(device, []byte(content), 0o644))
	}
	write("")
	expect.Check(t, syscall.Mount(device, "/etc/resolv.conf", "", syscall.MS_BIND, ""))
	defer func() { _ = syscall.Unmount("/etc/resolv.conf", 0) }()
	e := r.engine()
	r.supervise(e)
	r.apply(e, r.load(e, "resolver", "services: {web: {image: BUSYBOX}}"))
	write("search plant.example\n")
	c := r.containers(e, "resolver")["web"]
	expect.Eventually(r, "the domain is known", func() bool {
		return strings.Contains(r.inside(c, "cat /etc/resolv.conf"), "search plant.example\n")
	})
}

// A container that cannot be started is tried again, ever more rarely as TestBackoff shows, and keeps
// nobody from removing it.
func TestSupervisorBacksOffFromWhatCannotStart(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		p := r.load(e, "broken", `services: {broken: {image: BUSYBOX, restart: always, entrypoint: ["/nope"]}}`)
		r.refused(e, p, runtime.StartFailed)
		r.supervise(e)
		expect.Eventually(r, "it is tried again and again", func() bool { return r.containers(e, "broken")["broken"].Restarts >= 3 })
		expect.OK(t, e.Remove(t.Context(), "broken"))
	})
}

func TestSupervisorBringsBackWhatDiedWithItsShim(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		r.supervise(e)
		r.apply(e, r.load(e, "shim", `
services:
  a: {image: BUSYBOX, restart: always}
  b: {image: BUSYBOX}
`))
		before := r.containers(e, "shim")
		r.killShims()
		r.poked(e)
		r.runsAgain(e, "shim", "a", before["a"].Pid)
		r.runsAgain(e, "shim", "b", before["b"].Pid)
	})
}

// Where somebody has still to decide what is to run, nothing is brought back
// before.
func TestSupervisorLeavesAloneWhatIsStillToBeDecided(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		const file = "services: {a: {image: BUSYBOX, restart: always}}"
		e := r.engine()
		stop := r.supervise(e)
		for _, project := range []string{"decided", "matched", "applied"} {
			r.apply(e, r.load(e, project, file))
		}
		stop()
		r.reboot(e)
		e = r.engine()
		e.LeaveAlone("matched", "applied")
		stop = r.supervise(e)
		defer stop()
		runs := func(project string) bool { return r.containers(e, project)["a"].State == runtime.Running }
		expect.Eventually(r, "what is decided is back", func() bool { return runs("decided") })
		expect.True(t, !runs("matched") && !runs("applied"), "what was to be left alone runs")
		expect.Equal(t, expect.Value(e.Matches(t.Context(), r.load(e, "matched", file)))(t), true, "matches what is on the device")
		expect.Eventually(r, "what matches is back", func() bool { return runs("matched") })
		expect.Equal(t, runs("applied"), false, "what was to be left alone runs")
		r.apply(e, r.load(e, "applied", file))
		expect.Equal(t, runs("applied"), true, "what was applied runs")
	})
}

func TestSupervisorAfterAReboot(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		stop := r.supervise(e)
		r.apply(e, r.load(e, "boot", shop))
		expect.Eventually(r, "an answer", func() bool { return get("127.0.0.1:18080") == "ANSWER" })
		before := r.containers(e, "boot")
		stop()
		r.reboot(e)

		// A new agent, no registry within reach, and nobody who applies.
		var starts []string
		r.offline = true
		r.onStep = func(step string) {
			if strings.HasPrefix(step, "before start") {
				starts = append(starts, step)
			}
			expect.True(t, !strings.Contains(step, "create") && !strings.Contains(step, "delete"), "step %q", step)
		}
		e = r.engine()
		stop = r.supervise(e)
		expect.Eventually(r, "an answer", func() bool { return get("127.0.0.1:18080") == "ANSWER" })
		after := r.containers(e, "boot")
		for service, c := range after {
			if c.ID != before[service].ID || c.Address != before[service].Address {
				t.Errorf("%s was %+v, is %+v", service, before[service], c)
			}
		}
		stop()
		expect.Equal(t, strings.Join(starts, ", "), "before start container db-1, before start container web-1", "started")
	})
}

func TestSupervisorLeavesRunningServicesAloneWhenItStarts(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		r.apply(e, r.load(e, "calm", shop))
		before := r.containers(e, "calm")
		r.onStep = func(step string) {
			expect.True(t, !strings.Contains(step, "container"), "step %q", step)
		}
		synced := make(chan struct{}, 1)
		inner := r.onStep
		r.onStep = func(step string) {
			inner(step)
			if step == "after sync ports" {
				synced <- struct{}{}
			}
		}
		e = r.engine()
		r.supervise(e)
		expect.Receive(t, "the rules are brought up to date", synced)
		select {
		case <-e.Changes():
			t.Error("a change is told where there is none")
		default:
		}
		after := r.containers(e, "calm")
		for service, c := range after {
			expect.Equal(t, c.Pid, before[service].Pid, "process of %s", service)
		}
	})
}

func TestServicesReturnIntoANetworkThatWasWiped(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		stop := r.supervise(e)
		r.apply(e, r.load(e, "wiped", shop))
		expect.Eventually(r, "an answer", func() bool { return get("127.0.0.1:18080") == "ANSWER" })
		stop()
		r.wipeNetwork()
		e = r.engine()
		r.supervise(e)
		expect.Eventually(r, "an answer", func() bool { return get("127.0.0.1:18080") == "ANSWER" })
	})
}

func TestSupervisorAndUpdateDoNotFight(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		r.supervise(e)
		file := `
services:
  a: {image: BUSYBOX, restart: always, environment: {N: "0"}}
  b: {image: BUSYBOX, restart: always, depends_on: [a]}
`
		for _, n := range []string{"0", "1", "2"} {
			r.apply(e, r.load(e, "fight", strings.Replace(file, `"0"`, `"`+n+`"`, 1)))
			if c := r.containers(e, "fight"); len(c) != 2 || c["a"].State != runtime.Running {
				t.Errorf("after update %s: %+v", n, c)
			}
		}
		killed := r.kill(e, "fight", "a")
		r.poked(e)
		r.runsAgain(e, "fight", "a", killed)
		expect.Check(t, e.Remove(t.Context(), "fight"))
		r.expectNothingLeft()
	})
}

func TestLogsStaySmall(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		r.supervise(e)
		r.apply(e, r.load(e, "chatty", `
services:
  app:
    image: BUSYBOX
    command: ["sh", "-c", "yes 0123456789012345678901234567890123456789012345678901234567890123456789 | head -c 5000000; echo; echo end; sleep 1000"]
    logging: {options: {max-size: 1m, max-file: "2"}}
`))
		said := func() bool { return strings.HasSuffix(r.logs(e, "chatty", "app"), "end\n") }
		expect.Eventually(r, "all output is there", said)
		expect.Eventually(r, "one or two files of at most one MiB hold it", func() bool {
			files := expect.Value(filepath.Glob(filepath.Join(r.run, "logs", r.containers(e, "chatty")["app"].ID+"*")))(t)
			var size, biggest int64
			for _, file := range files {
				info, err := os.Stat(file)
				if err != nil {
					return false // being rotated
				}
				size, biggest = size+info.Size(), max(biggest, info.Size())
			}
			return len(files) <= 2 && biggest <= 1<<20 && size >= 1<<19
		})
		expect.Equal(t, said(), true, "the end of the output is there")
	})
}

// A project that waits for something keeps the supervisor from no other, and
// nobody from asking about it or removing it.
func TestSupervisorWaitsForNoProject(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		slow := r.load(e, "slow", `
services:
  app:
    image: BUSYBOX
    restart: always
    volumes: ["data:/data"]
    post_start: [{command: ["sh", "-c", "if test -e /data/hang; then touch /data/hangs; sleep 1000; fi"]}]
volumes: {data: {}}
`)
		r.apply(e, slow)
		r.apply(e, r.load(e, "quick", `services: {app: {image: BUSYBOX, restart: always}}`))
		r.supervise(e)
		r.touch("slow", "data", "hang")
		r.kill(e, "slow", "app")
		expect.Eventually(r, "the hook of one project hangs", func() bool {
			_, err := os.Stat(filepath.Join(r.state, "volumes/slow/data/hangs"))
			return err == nil
		})

		r.runsAgain(e, "quick", "app", r.kill(e, "quick", "app"))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		expect.Equal(t, expect.Value(e.Matches(ctx, slow))(t), true, "matches")
		expect.OK(t, e.Remove(ctx, "slow"))
	})
}

// A project whose shim stops responding is ended and brought back; its neighbour does not notice.
func TestSupervisorReplacesAShimThatHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: long waits")
	}
	onEach(t, func(t *testing.T, r *rig) {
		r.shimGrace = 3 * time.Second
		const file = "services: {a: {image: BUSYBOX, restart: always}}"
		e := r.engine()
		r.apply(e, r.load(e, "hung", file))
		mine := r.shims()
		r.apply(e, r.load(e, "well", file))
		r.supervise(e)
		hung, well := r.containers(e, "hung")["a"], r.containers(e, "well")["a"]
		for _, shim := range mine {
			expect.Check(t, syscall.Kill(shim, syscall.SIGSTOP))
		}
		expect.Eventually(r, "its shim is known not to respond", func() bool { return r.containers(e, "hung")["a"].State == runtime.Unresponsive })
		r.poked(e)
		r.runsAgain(e, "hung", "a", hung.Pid)
		if now := r.containers(e, "well")["a"]; now.State != runtime.Running || now.Pid != well.Pid {
			t.Errorf("its neighbour was %s with process %d, and is %s with %d", well.State, well.Pid, now.State, now.Pid)
		}
		if left := r.shims(); slices.ContainsFunc(mine, func(pid int) bool { return slices.Contains(left, pid) }) {
			t.Errorf("a shim of %v is left: %v", mine, left)
		}
	})
}
