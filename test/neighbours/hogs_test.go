package neighbours

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/registry"
)

// hog is a party that takes more than its share.
type hog struct {
	short  bool // it is also in make test, on the embedded containerd
	debian bool // it is also tried on Debian's containerd
	// bounds replace acceptable times, where the hog is who answers.
	bounds map[duty]time.Duration
	// load is how many processors the work takes that the hog asks the agent for.
	load float64
}

// started is a hog that has begun.
type started struct {
	// effect returns nil once the hog is felt; nil: it is at once.
	effect func(context.Context) error
	// end ends the hog and waits until what it deployed is removed.
	end func(context.Context) error
}

// What everything takes beside no hog, to compare with.
func TestNobody(t *testing.T) {
	if os.Getenv(long) == "" {
		t.Skip("there is nobody to be kept from anything: make neighbours")
	}
	beside(t, hog{}, func(*site) started { return started{end: func(context.Context) error { return nil }} })
}

func TestARegistryThatDrips(t *testing.T) {
	beside(t, hog{short: true}, registryWith(fault.Fault{Endpoint: registry.EndpointBlob, Kind: fault.Drip, Bytes: 1024, Wait: 25 * time.Second}))
}

// It cuts after each byte.
func TestARegistryThatCuts(t *testing.T) {
	beside(t, hog{}, registryWith(fault.Fault{Endpoint: registry.EndpointBlob, Kind: fault.Cut, Bytes: 1}))
}

func TestARegistryThatNeverAnswers(t *testing.T) {
	beside(t, hog{}, registryWith(fault.Fault{Kind: fault.Stall}))
}

// There are more installations than places for changes, with all the time that a WFM
// can give them.
func TestInstallationsThatHang(t *testing.T) {
	var all []application
	for i := range 3 {
		never := "healthcheck: {test: [CMD, \"false\"], interval: 1s, timeout: 1s, retries: 1000000, start_period: 1000h}"
		name := fmt.Sprintf("hanging%d", i)
		all = append(all, application{name: name, timeout: "999999m", compose: compose(service(name, "exec sleep 1000000", never))})
	}
	beside(t, hog{}, deploys(both(runs("hanging0", 1), runs("hanging1", 1)), all...))
}

// Ten services end again and again.
func TestServicesThatCrash(t *testing.T) {
	var services []string
	for i := range 10 {
		services = append(services, service(fmt.Sprintf("crashing%d", i), "sleep 1; exit 1"))
	}
	beside(t, hog{}, func(s *site) started {
		return s.deployed(func(ctx context.Context) error {
			return s.WFM.WaitStatus(ctx, id("crashing"), func(all []wfmsim.Report) bool {
				n := len(all)
				return n > 0 && (all[n-1].Status.State == margo.Installed || all[n-1].Status.State == margo.Failed)
			})
		}, application{name: "crashing", compose: compose(services...)})
	})
}

// Services print as fast as they can.
func TestAFloodOfLogs(t *testing.T) {
	line := strings.Repeat("flood ", 20)
	beside(t, hog{short: true}, deploys(runs("flooding1", 1), application{name: "flooding", compose: compose(
		service("flooding1", "exec yes "+line, share()), service("flooding2", "exec yes "+line+">&2", share()))}))
}

// A service asks for names as fast as it can.
func TestAFloodOfQuestions(t *testing.T) {
	beside(t, hog{}, deploys(runs("asking", 1), application{name: "asking", compose: compose(service("asking", "exec hog dns", share()))}))
}

// Of the commands in one container some stay and others come one after the other.
func TestAFloodOfExecSessions(t *testing.T) {
	beside(t, hog{}, func(s *site) started {
		begun := s.deployed(runs("entered", 1), application{name: "entered", compose: compose(service("entered", "exec sleep 1000000"))})
		return begun.after(s.loops(24, func(ctx context.Context, n int) {
			request := control.ExecRequest{Deployment: id("entered"), Service: "entered", Args: []string{"sleep", "1000000"}}
			if n < 4 {
				request.Args = []string{"true"}
			}
			_, err := s.Control().Exec(ctx, request, control.ExecStreams{Stdout: io.Discard, Stderr: io.Discard})
			if err != nil || !s.long {
				pause(ctx, 300*time.Millisecond)
			}
		}))
	})
}

// given are the files that the agent gives a container.
const given = "/etc/hosts /etc/resolv.conf /etc/hostname"

// Services make the files that the agent gives them larger than any memory, or put
// something else in their place.
func TestStretchedGivenFiles(t *testing.T) {
	beside(t, hog{}, deploys(both(runs("stretching", 1), runs("replacing", 1)), application{name: "writing", compose: compose(
		service("stretching", "while true; do for f in "+given+"; do truncate -s 200G $f; done; sleep 1; done"),
		service("growing", "truncate -s 6G /etc/hosts; exec sleep 1000000"),
		service("replacing", "for f in "+given+"; do rm -f $f; mkfifo $f; done; exec sleep 1000000"))}))
}

// Services write without end to the files that the agent gives them.
func TestFilledGivenFiles(t *testing.T) {
	fill := func(file string) string {
		return "while true; do dd if=/dev/zero of=" + file + " bs=64k count=16000; sleep 1; done"
	}
	beside(t, hog{}, deploys(both(runs("filling1", 1), runs("filling2", 1)), application{name: "filling", compose: compose(
		service("filling1", fill("/etc/hostname")), service("filling2", fill("/etc/hosts")))}))
}

// Services hold the files that the agent gives them against whoever opens one.
func TestLeasesOfGivenFiles(t *testing.T) {
	leased := func(context.Context) error {
		locks, err := os.ReadFile("/proc/locks")
		if n := strings.Count(string(locks), " LEASE "); err == nil && n < 9 { // replicas times files
			err = fmt.Errorf("there are %d leases", n)
		}
		return err
	}
	beside(t, hog{}, deploys(leased, application{name: "leasing", compose: compose(
		service("leasing", "exec hog lease "+given, "deploy: {replicas: 3}"))}))
}

// Every file of root file systems that runc or the agent may read is a FIFO.
func TestFIFOsInRootFileSystems(t *testing.T) {
	const replace = "for f in passwd group shadow gshadow subuid subgid nsswitch.conf localtime os-release login.defs environment mtab; do rm -f /etc/$f; mkfifo /etc/$f; done; "
	often := "healthcheck: {test: [CMD, \"true\"], interval: 1s, timeout: 5s, retries: 1000}"
	beside(t, hog{debian: true}, deploys(runs("blocking", 6), application{name: "blocking", compose: compose(
		service("blocking", replace+"exec sleep 1000000", often, "deploy: {replicas: 6}"),
		service("returning", replace+"sleep 2"))}))
}

// It does not answer.
func TestAStoppedShim(t *testing.T) {
	beside(t, hog{short: true, debian: true}, func(s *site) started {
		check1s := "healthcheck: {test: [CMD, \"true\"], interval: 1s}"
		begun := s.deployed(nil, application{name: "frozen", compose: compose(service("frozen", "exec sleep 1000000", check1s))})
		var stopped []int
		begun.effect = func(ctx context.Context) error {
			if err := runs("frozen", 1)(ctx); err != nil || len(stopped) > 0 {
				return err
			}
			if err := s.WFM.WaitState(ctx, id("frozen"), margo.Installed, 0); err != nil {
				return err
			}
			for _, p := range processes("hog-frozen") {
				shim, err := strconv.Atoi(plant.Stat(p.pid).Parent)
				if err != nil {
					return fmt.Errorf("process %d has no parent: %w", p.pid, err)
				}
				stopped = append(stopped, shim)
				if err := unix.Kill(shim, unix.SIGSTOP); err != nil {
					return err
				}
			}
			return nil
		}
		return begun.after(func() {
			for _, pid := range stopped {
				_ = unix.Kill(pid, unix.SIGCONT) // the agent may have ended it
			}
		})
	})
}

// Two callers have a volume of many files measured all the time, and another one is
// removed meanwhile.
func TestAVolumeOfManyFiles(t *testing.T) {
	beside(t, hog{load: 2}, func(s *site) started {
		n := 20_000
		if s.long {
			n = 400_000
		}
		volumes := []control.Unneeded{
			{Kind: control.UnneededVolume, Project: "hog", Name: "kept"},
			{Kind: control.UnneededVolume, Project: "hog", Name: "pruned"},
		}
		for _, v := range volumes {
			check(s.T, fill(filepath.Join(s.StateDir(), "volumes", v.Project, v.Name), n))
		}
		stop := s.loops(2, func(ctx context.Context, n int) {
			if _, err := s.Control().Unneeded(ctx); err != nil {
				pause(ctx, 100*time.Millisecond)
			}
			if n == 0 {
				_, _ = s.Control().Prune(ctx, volumes[1:]) // it is gone after the first time
			}
		})
		return started{end: func(ctx context.Context) error {
			stop()
			_, err := s.Control().Prune(ctx, volumes)
			if left, _ := filepath.Glob(filepath.Join(s.StateDir(), "volumes", "hog", "*")); err == nil && len(left) > 0 {
				err = fmt.Errorf("%q are left", left)
			}
			return err
		}}
	})
}

// They hold all that the control socket has for callers without privileges, and as
// many streams as a process of root may have.
func TestCallersThatHoldTheSocket(t *testing.T) {
	beside(t, hog{short: true}, func(s *site) started {
		group := expect.Value(user.LookupGroup(operators))(s.T)
		gid := expect.Value(strconv.ParseUint(group.Gid, 10, 32))(s.T)
		url := func(path string) string { return "http://margolite" + path }
		var arguments []string
		for range 10 {
			arguments = append(arguments, url("/v1/events"))
		}
		for range 30 {
			arguments = append(arguments, url("/v1/logs?follow=true&deployment="+id(checked)))
		}
		stop := s.loops(4, func(ctx context.Context, n int) {
			own := arguments
			if n == 3 {
				own = arguments[:10]
			}
			cmd := exec.CommandContext(ctx, "curl", append([]string{"--silent", "--no-buffer", "--parallel", "--parallel-immediate", "--unix-socket", s.Socket()}, own...)...)
			if n < 3 {
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(60001 + n), Gid: uint32(gid)}}
			}
			_ = cmd.Run() // until the agent ends, or this does
			pause(ctx, 300*time.Millisecond)
		})
		return started{end: func(context.Context) error { stop(); return nil }}
	})
}

// Its answers come in drips: what goes through it takes the time of several answers.
func TestAWFMThatDrips(t *testing.T) {
	bounds := map[duty]time.Duration{polls: 90 * time.Second, reports: 150 * time.Second, removal: 180 * time.Second, install: 180 * time.Second}
	beside(t, hog{bounds: bounds}, func(s *site) started {
		expect.Value(s.WFM.Faults().Inject(fault.Fault{Kind: fault.Drip, Bytes: 100, Wait: 500 * time.Millisecond}))(s.T)
		return started{end: func(context.Context) error { s.WFM.Faults().Clear(""); return nil }}
	})
}

// service is one of a Compose file of a hog, which runs a command of a shell. More
// are more lines of it.
func service(name, command string, more ...string) string {
	lines := []string{
		"  " + name + ":",
		"    image: ${REGISTRY}/" + tools + ":1.0.0",
		"    command: [sh, -c, " + strconv.Quote(strings.ReplaceAll(command, "$", "$$")) + "]",
		"    environment: {NEIGHBOUR: hog-" + name + "}",
		"    stop_signal: SIGKILL",
		"    restart: always",
	}
	for _, line := range more {
		lines = append(lines, "    "+line)
	}
	return strings.Join(lines, "\n") + "\n"
}

// compose is a Compose file of services.
func compose(services ...string) string { return "services:\n" + strings.Join(services, "") }

// deployed is a hog that is applications, and nothing else.
func (s *site) deployed(effect func(context.Context) error, all ...application) started {
	s.T.Helper()
	var names []string
	for _, a := range all {
		expect.Value(s.publish(a))(s.T)
		names = append(names, a.name)
	}
	return started{effect: effect, end: func(ctx context.Context) error { return s.withdraw(ctx, names...) }}
}

// deploys is a hog that is applications which need nothing of their site.
func deploys(effect func(context.Context) error, all ...application) func(*site) started {
	return func(s *site) started { return s.deployed(effect, all...) }
}

// runs says whether n processes run of a service of a hog.
func runs(name string, n int) func(context.Context) error {
	return func(context.Context) error {
		if all := processes("hog-" + name); len(all) < n {
			return fmt.Errorf("%d processes of %s run, want %d", len(all), name, n)
		}
		return nil
	}
}

// registryWith is a registry that answers badly, with more deployments than there
// are places for downloads.
func registryWith(f fault.Fault) func(*site) started {
	return func(s *site) started {
		s.T.Helper()
		var all []application
		for i := range 5 {
			image := expect.Value(toolsImage(4<<20 + i))(s.T)
			tag := fmt.Sprintf("1.0.%d", i)
			check(s.T, ociimage.Registry{URL: s.hogs.URL()}.Push(s.T.Context(), "hog/tools", tag, image))
			all = append(all, application{
				name: fmt.Sprintf("fetching%d", i), foreign: i == 3 && f.Endpoint != "",
				compose: fmt.Sprintf("services: {app: {image: \"${HOGS}/hog/tools:%s\", command: [sleep, \"1000000\"], stop_signal: SIGKILL}}\n", tag),
			})
		}
		before := s.hogs.Requests().Count(f.Endpoint)
		expect.Value(s.hogs.Faults().Inject(f))(s.T)
		begun := s.deployed(func(context.Context) error {
			if n := s.hogs.Requests().Count(f.Endpoint) - before; n < 3 {
				return fmt.Errorf("the registry was asked %d times", n)
			}
			return nil
		}, all...)
		return begun.after(func() { s.hogs.Faults().Clear("") })
	}
}

// share is how much of the processors a hog may have in the short form, beside
// other tests.
func share() string {
	if os.Getenv(long) != "" {
		return "init: false"
	}
	return "cpus: 0.3"
}

// loops does something again and again, n times at once, until stop is called.
func (s *site) loops(n int, do func(ctx context.Context, n int)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.T.Context()))
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			for ctx.Err() == nil {
				do(ctx, i)
			}
		})
	}
	stop = func() {
		cancel()
		all.Wait()
	}
	s.T.Cleanup(stop)
	return stop
}

// pause waits, unless ctx is done before.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// after is a hog that is stopped before what it deployed is removed.
func (begun started) after(stop func()) started {
	withdraw := begun.end
	begun.end = func(ctx context.Context) error {
		stop()
		return withdraw(ctx)
	}
	return begun
}

// both says whether both are so.
func both(one, other func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return errors.Join(one(ctx), other(ctx)) }
}

// fill makes a directory with n small files, a thousand in each directory.
func fill(dir string, n int) error {
	for i := range n {
		below := filepath.Join(dir, strconv.Itoa(i/1000))
		if i%1000 == 0 {
			if err := os.MkdirAll(below, 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(below, strconv.Itoa(i)), nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}
