package isolated

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// lane tells a process that it has one test of several that run at once.
const lane = "MARGOLITE_TEST_LANE"

// MainInLanes is Main for tests that mostly wait: each has a process and
// namespaces of its own, and two run at once for each CPU. What a test prints
// comes when it is over. It is Main where only some tests are asked for, or
// anything else but their results. Where control groups are shared, tests run
// one after the other.
func MainInLanes(m Tests) int {
	flag.Parse()
	if !Outside() || !forLanes() {
		return Main(m)
	}
	n := 2 * runtime.NumCPU()
	switch list, err := hierarchies(); {
	case err != nil:
		fmt.Fprintln(os.Stderr, "cannot list control groups:", err)
		return 1
	case len(list) == 0:
		n = 1
	}
	names, err := listed()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot list the tests:", err)
		return 1
	}
	if !inLanes(names, n, deadline()) {
		fmt.Println("FAIL")
		return 1
	}
	fmt.Println("PASS")
	return 0
}

// forLanes says whether all tests are to run and nothing but that is wanted.
func forLanes() bool {
	can := true
	flag.Visit(func(f *flag.Flag) {
		known := []string{"test.v", "test.short", "test.timeout", "test.count", "test.paniconexit0", "test.testlogfile"}
		can = can && slices.Contains(known, f.Name)
	})
	return can
}

// deadline is when the tests have to be over; zero: never.
func deadline() time.Time {
	after := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration)
	if after == 0 {
		return time.Time{}
	}
	return time.Now().Add(after)
}

// listed are the names of all tests.
func listed() ([]string, error) {
	cmd := withArguments("-test.list=^Test")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	names := regexp.MustCompile(`(?m)^Test\S*$`).FindAllString(string(out), -1)
	if len(names) == 0 {
		return nil, fmt.Errorf("there are none: %q", out)
	}
	return names, nil
}

// inLanes runs the tests, n at once, and says whether all of them passed. What
// failed is told once more at the end, without the logs that stand beside it.
func inLanes(names []string, n int, deadline time.Time) bool {
	todo := make(chan string)
	var mu sync.Mutex // of what is printed, and of failures
	var failures []byte
	var lanes sync.WaitGroup
	for range n {
		lanes.Go(func() {
			for name := range todo {
				said, err := alone(name, deadline)
				mu.Lock()
				_, _ = os.Stdout.Write(said) // nobody is left who could be told
				if err != nil {
					fmt.Printf("%s in a process of its own: %v\n", name, err)
					failures = fmt.Appendf(failures, "%s: %v\n%s", name, err, bytes.Join(complaint.FindAll(said, 20), nil))
				}
				mu.Unlock()
			}
		})
	}
	for _, name := range names {
		todo <- name
	}
	close(todo)
	lanes.Wait()
	if failures != nil {
		fmt.Printf("What failed:\n%s", failures)
	}
	return failures == nil
}

// complaint is a line in which a test says what is wrong.
var complaint = regexp.MustCompile(`(?m)^ +(--- FAIL: |[a-z_]+_test\.go:[0-9]+: ).*\n`)

// alone runs one test and gives what it said, without the last word, which is
// about all tests of a process.
func alone(name string, deadline time.Time) ([]byte, error) {
	arguments := []string{"-test.run=^" + name + "$"}
	if !deadline.IsZero() {
		arguments = append(arguments, fmt.Sprintf("-test.timeout=%s", max(time.Until(deadline), time.Second)))
	}
	out, err := withArguments(arguments...).CombinedOutput()
	lines := slices.Collect(bytes.Lines(out))
	if n := len(lines); n > 0 && slices.Contains([]string{"PASS", "FAIL"}, strings.Trim(string(lines[n-1]), "\x16\n")) {
		lines = lines[:n-1]
	}
	return bytes.Join(lines, nil), err
}

// withArguments is this program with more arguments, in a lane. The record of
// what the tests read is for one process; without it their result is not cached.
func withArguments(more ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", slices.Concat(os.Args[1:], []string{"-test.testlogfile="}, more)...)
	cmd.Env = append(os.Environ(), lane+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}
