// Package isolated runs the tests of a package in network, mount, process and
// control group namespaces of their own: bridges, rules, mounts, containers and
// groups that a test makes are seen by no other test and by nothing else on the
// machine, and are gone with it, however it ends.
package isolated

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/vishvananda/netlink"
)

// stage tells a process which part it plays: none for the one that the user
// started, then "init" for the first one in the namespaces, then "tests".
const stage = "MARGOLITE_TEST_STAGE"

// Tests are what is run: a *testing.M, or something around it.
type Tests interface{ Run() int }

// Main runs the tests of m in namespaces of their own and returns the exit
// code, for TestMain. They see a loopback interface of their own and no other.
// Without root the tests run where they are.
func Main(m Tests) int {
	switch {
	case os.Geteuid() != 0, os.Getenv(stage) == "tests":
		return m.Run()
	case os.Getenv(stage) == "init":
		return initialise()
	}
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot run the tests in namespaces of their own:", err)
		return 1
	}
	return code
}

// Outside tells that this is not yet a process in which tests run, but the one
// before all of them: it has the machine's network, which they do not have.
func Outside() bool { return os.Geteuid() == 0 && os.Getenv(stage) == "" && os.Getenv(lane) == "" }

// run runs the first process in the namespaces.
func run() (code int, err error) {
	groups, err := enterGroups()
	defer func() { err = errors.Join(err, groups.leave()) }()
	if err != nil {
		return 0, err
	}
	cmd := again("init")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWCGROUP,
		Pdeathsig:  syscall.SIGKILL,
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// again is this program with the same arguments, in another stage.
func again(next string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), stage+"="+next)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd
}

// initialise is process 1 of the namespaces: it prepares them, starts the
// tests, and buries the processes that lose their parents, as shims do. When it
// ends, the kernel ends whatever is left.
func initialise() int {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot prepare the namespaces of the tests:", err)
		return 1
	}
	// A terminal's interrupt is for the tests; they end, and so does this.
	signal.Ignore(os.Interrupt)
	cmd := again("tests")
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot start the tests:", err)
		return 1
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			fmt.Fprintln(os.Stderr, "cannot wait for the tests:", err)
			return 1
		case pid == cmd.Process.Pid && status.Exited():
			return status.ExitStatus()
		case pid == cmd.Process.Pid:
			fmt.Fprintln(os.Stderr, "the tests were ended by", status.Signal())
			return 1
		}
	}
}

// prepare keeps mounts from leaking out, shows the processes and control groups
// of the new namespaces, and brings up the loopback interface.
func prepare() error {
	if err := syscall.Mount("", "/", "", syscall.MS_SLAVE|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot make mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("cannot mount /proc: %w", err)
	}
	if err := mountGroups(); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("cannot find the loopback interface: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("cannot bring up the loopback interface: %w", err)
	}
	return nil
}
