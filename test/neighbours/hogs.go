package neighbours

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/registry"
)

// Hog is a party that takes more than its share: see [Site.Beside].
type Hog struct {
	Name  string
	Begin func(*Site) Started
	// Bounds replace acceptable times, where the hog is who answers.
	Bounds map[Duty]time.Duration
	// Load is how many processors the work takes that the hog asks the agent for.
	Load float64
}

// Started is a hog that has begun.
type Started struct {
	// Effect returns nil once the hog is felt; nil: it is at once.
	Effect func(context.Context) error
	// End ends the hog and waits until what it deployed is removed.
	End func(context.Context) error
}

// Hogs are all that there are.
func Hogs() []Hog {
	return []Hog{
		{Name: "nobody", Begin: func(*Site) Started { return Started{End: func(context.Context) error { return nil }} }},
		registryHog("a registry that drips", fault.Fault{Endpoint: registry.EndpointBlob, Kind: fault.Drip, Bytes: 1024, Wait: 25 * time.Second}),
		registryHog("a registry that cuts after each byte", fault.Fault{Endpoint: registry.EndpointBlob, Kind: fault.Cut, Bytes: 1}),
		registryHog("a registry that never answers", fault.Fault{Kind: fault.Stall}),
		hangingInstalls(),
		stoppedShim(),
		crashLoop(),
		floodOfLogs(),
		floodOfQuestions(),
		floodOfExec(),
		stretchers(),
		fillers(),
		leases(),
		fifos(),
		fullVolume(),
		greedyCallers(),
		drippingWFM(),
	}
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
func (s *Site) deployed(effect func(context.Context) error, all ...application) Started {
	s.T.Helper()
	var names []string
	for _, a := range all {
		_, err := s.publish(a)
		check(s.T, err)
		names = append(names, a.name)
	}
	return Started{Effect: effect, End: func(ctx context.Context) error { return s.withdraw(ctx, names...) }}
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

// registryHog is a registry that answers badly, with more deployments than there
// are places for downloads.
func registryHog(name string, f fault.Fault) Hog {
	return Hog{Name: name, Begin: func(s *Site) Started {
		s.T.Helper()
		var all []application
		for i := range 5 {
			image, err := toolsImage(s.Programs, 4<<20+i)
			check(s.T, err)
			tag := fmt.Sprintf("1.0.%d", i)
			check(s.T, ociimage.Registry{URL: s.Hogs.URL()}.Push(s.T.Context(), "hog/tools", tag, image))
			all = append(all, application{
				name: fmt.Sprintf("fetching%d", i), foreign: i == 3 && f.Endpoint != "",
				compose: fmt.Sprintf("services: {app: {image: \"${HOGS}/hog/tools:%s\", command: [sleep, \"1000000\"], stop_signal: SIGKILL}}\n", tag),
			})
		}
		before := s.Hogs.Requests().Count(f.Endpoint)
		_, err := s.Hogs.Faults().Inject(f)
		check(s.T, err)
		started := s.deployed(func(context.Context) error {
			if n := s.Hogs.Requests().Count(f.Endpoint) - before; n < 3 {
				return fmt.Errorf("the registry was asked %d times", n)
			}
			return nil
		}, all...)
		withdraw := started.End
		started.End = func(ctx context.Context) error {
			s.Hogs.Faults().Clear("")
			return withdraw(ctx)
		}
		return started
	}}
}

// hangingInstalls are more installations than there are places for changes, with
// all the time that a WFM can give them.
func hangingInstalls() Hog {
	return Hog{Name: "installations that hang", Begin: func(s *Site) Started {
		s.T.Helper()
		var all []application
		for i := range 3 {
			never := "healthcheck: {test: [CMD, \"false\"], interval: 1s, timeout: 1s, retries: 1000000, start_period: 1000h}"
			name := fmt.Sprintf("hanging%d", i)
			all = append(all, application{name: name, timeout: "999999m", compose: compose(service(name, "exec sleep 1000000", never))})
		}
		return s.deployed(both(runs("hanging0", 1), runs("hanging1", 1)), all...)
	}}
}

// stoppedShim is a shim that does not answer.
func stoppedShim() Hog {
	return Hog{Name: "a stopped shim", Begin: func(s *Site) Started {
		s.T.Helper()
		check1s := "healthcheck: {test: [CMD, \"true\"], interval: 1s}"
		started := s.deployed(nil, application{name: "frozen", compose: compose(service("frozen", "exec sleep 1000000", check1s))})
		var stopped []int
		started.Effect = func(ctx context.Context) error {
			if err := runs("frozen", 1)(ctx); err != nil || len(stopped) > 0 {
				return err
			}
			if err := s.WFM.WaitState(ctx, id("frozen"), margo.Installed, 0); err != nil {
				return err
			}
			for _, p := range processes("hog-frozen") {
				shim, err := parent(p.pid)
				if err != nil {
					return err
				}
				stopped = append(stopped, shim)
				if err := unix.Kill(shim, unix.SIGSTOP); err != nil {
					return err
				}
			}
			return nil
		}
		withdraw := started.End
		started.End = func(ctx context.Context) error {
			for _, pid := range stopped {
				_ = unix.Kill(pid, unix.SIGCONT) // the agent may have ended it
			}
			return withdraw(ctx)
		}
		return started
	}}
}

// parent is the parent of a process.
func parent(pid int) (int, error) {
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, err
	}
	words := field(status, "PPid")
	if len(words) == 0 {
		return 0, fmt.Errorf("process %d has no parent", pid)
	}
	return strconv.Atoi(words[0])
}

// crashLoop are ten services that end again and again.
func crashLoop() Hog {
	return Hog{Name: "ten services that crash", Begin: func(s *Site) Started {
		s.T.Helper()
		var services []string
		for i := range 10 {
			services = append(services, service(fmt.Sprintf("crashing%d", i), "sleep 1; exit 1"))
		}
		return s.deployed(func(ctx context.Context) error {
			return s.WFM.WaitStatus(ctx, id("crashing"), func(all []wfmsim.Report) bool {
				n := len(all)
				return n > 0 && (all[n-1].Status.State == margo.Installed || all[n-1].Status.State == margo.Failed)
			})
		}, application{name: "crashing", compose: compose(services...)})
	}}
}

// share is how much of the processors a hog may have in the short form, beside
// other tests.
func (s *Site) share() string {
	if s.Long {
		return "init: false"
	}
	return "cpus: 0.3"
}

// floodOfLogs are services that print as fast as they can.
func floodOfLogs() Hog {
	return Hog{Name: "a flood of logs", Begin: func(s *Site) Started {
		s.T.Helper()
		line := strings.Repeat("flood ", 20)
		return s.deployed(runs("flooding1", 1), application{name: "flooding", compose: compose(
			service("flooding1", "exec yes "+line, s.share()), service("flooding2", "exec yes "+line+">&2", s.share()))})
	}}
}

// floodOfQuestions is a service that asks for names as fast as it can.
func floodOfQuestions() Hog {
	return Hog{Name: "a flood of DNS questions", Begin: func(s *Site) Started {
		s.T.Helper()
		return s.deployed(runs("asking", 1), application{name: "asking", compose: compose(service("asking", "exec hog dns", s.share()))})
	}}
}

// floodOfExec are commands in one container, some of which stay and others come
// one after the other.
func floodOfExec() Hog {
	return Hog{Name: "a flood of exec sessions", Begin: func(s *Site) Started {
		s.T.Helper()
		started := s.deployed(runs("entered", 1), application{name: "entered", compose: compose(service("entered", "exec sleep 1000000"))})
		short := []string{"true"}
		stop := s.loops(24, func(ctx context.Context, n int) {
			request := control.ExecRequest{Deployment: id("entered"), Service: "entered", Args: []string{"sleep", "1000000"}}
			if n < 4 {
				request.Args = short
			}
			_, err := s.Control().Exec(ctx, request, control.ExecStreams{Stdout: io.Discard, Stderr: io.Discard})
			if err != nil || !s.Long {
				pause(ctx, 300*time.Millisecond)
			}
		})
		return started.after(stop)
	}}
}

// loops does something again and again, n times at once, until stop is called.
func (s *Site) loops(n int, do func(ctx context.Context, n int)) (stop func()) {
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
func (started Started) after(stop func()) Started {
	withdraw := started.End
	started.End = func(ctx context.Context) error {
		stop()
		return withdraw(ctx)
	}
	return started
}

// given are the files that the agent gives a container.
const given = "/etc/hosts /etc/resolv.conf /etc/hostname"

// stretchers make the files that the agent gives them larger than any memory, or put
// something else in their place.
func stretchers() Hog {
	return Hog{Name: "stretched given files", Begin: func(s *Site) Started {
		s.T.Helper()
		return s.deployed(both(runs("stretching", 1), runs("replacing", 1)), application{name: "writing", compose: compose(
			service("stretching", "while true; do for f in "+given+"; do truncate -s 200G $f; done; sleep 1; done"),
			service("growing", "truncate -s 6G /etc/hosts; exec sleep 1000000"),
			service("replacing", "for f in "+given+"; do rm -f $f; mkfifo $f; done; exec sleep 1000000"))})
	}}
}

// fillers write without end to the files that the agent gives them.
func fillers() Hog {
	return Hog{Name: "filled given files", Begin: func(s *Site) Started {
		s.T.Helper()
		fill := func(file string) string {
			return "while true; do dd if=/dev/zero of=" + file + " bs=64k count=16000; sleep 1; done"
		}
		return s.deployed(both(runs("filling1", 1), runs("filling2", 1)), application{name: "filling", compose: compose(
			service("filling1", fill("/etc/hostname")), service("filling2", fill("/etc/hosts")))})
	}}
}

// both says whether both are so.
func both(one, other func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return errors.Join(one(ctx), other(ctx)) }
}

// leases hold the files that the agent gives them against whoever opens one.
func leases() Hog {
	return Hog{Name: "leases of given files", Begin: func(s *Site) Started {
		s.T.Helper()
		return s.deployed(leased, application{name: "leasing", compose: compose(
			service("leasing", "exec hog lease "+given, "deploy: {replicas: 3}"))})
	}}
}

// leased says whether there are as many leases as replicas and files.
func leased(context.Context) error {
	locks, err := os.ReadFile("/proc/locks")
	if n := strings.Count(string(locks), " LEASE "); err == nil && n < 9 {
		err = fmt.Errorf("there are %d leases", n)
	}
	return err
}

// fifos have a FIFO in the place of every file of their root file systems that runc
// or the agent may read.
func fifos() Hog {
	const replace = "for f in passwd group shadow gshadow subuid subgid nsswitch.conf localtime os-release login.defs environment mtab; do rm -f /etc/$f; mkfifo /etc/$f; done; "
	return Hog{Name: "FIFOs in root file systems", Begin: func(s *Site) Started {
		s.T.Helper()
		often := "healthcheck: {test: [CMD, \"true\"], interval: 1s, timeout: 5s, retries: 1000}"
		return s.deployed(runs("blocking", 6), application{name: "blocking", compose: compose(
			service("blocking", replace+"exec sleep 1000000", often, "deploy: {replicas: 6}"),
			service("returning", replace+"sleep 2"))})
	}}
}

// fullVolume is a volume of many files that two callers have measured all the time,
// and another one that is removed meanwhile.
func fullVolume() Hog {
	return Hog{Name: "a volume of many files", Load: 2, Begin: func(s *Site) Started {
		s.T.Helper()
		n := 20_000
		if s.Long {
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
		return Started{End: func(ctx context.Context) error {
			stop()
			_, err := s.Control().Prune(ctx, volumes)
			if left, _ := filepath.Glob(filepath.Join(s.StateDir(), "volumes", "hog", "*")); err == nil && len(left) > 0 {
				err = fmt.Errorf("%q are left", left)
			}
			return err
		}}
	}}
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

// greedyCallers hold all that the control socket has for callers without
// privileges, and as many streams as a process of root may have.
func greedyCallers() Hog {
	return Hog{Name: "callers that hold the socket", Begin: func(s *Site) Started {
		s.T.Helper()
		gid, err := groupID(operators)
		check(s.T, err)
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
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(60001 + n), Gid: gid}}
			}
			_ = cmd.Run() // until the agent ends, or this does
			pause(ctx, 300*time.Millisecond)
		})
		return Started{End: func(context.Context) error { stop(); return nil }}
	}}
}

// groupID is the number of a group.
func groupID(name string) (uint32, error) {
	text, err := os.ReadFile("/etc/group")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(line, ":"); len(fields) > 2 && fields[0] == name {
			n, err := strconv.ParseUint(fields[2], 10, 32)
			return uint32(n), err
		}
	}
	return 0, fmt.Errorf("there is no group %s", name)
}

// drippingWFM is a WFM whose answers come in drips. What goes through it takes the
// time of several answers.
func drippingWFM() Hog {
	return Hog{
		Name:   "a WFM that drips",
		Bounds: map[Duty]time.Duration{Polls: 90 * time.Second, Reports: 150 * time.Second, Removal: 180 * time.Second, Install: 180 * time.Second},
		Begin: func(s *Site) Started {
			s.T.Helper()
			_, err := s.WFM.Faults().Inject(fault.Fault{Kind: fault.Drip, Bytes: 100, Wait: 500 * time.Millisecond})
			check(s.T, err)
			return Started{End: func(context.Context) error { s.WFM.Faults().Clear(""); return nil }}
		},
	}
}
