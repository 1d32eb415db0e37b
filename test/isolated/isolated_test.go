package isolated_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
)

func TestMain(m *testing.M) { os.Exit(isolated.Main(m)) }

func TestNamespacesAreTheirOwn(t *testing.T) {
	needRoot(t)
	interfaces := expect.Value(net.Interfaces())(t)
	for _, i := range interfaces {
		expect.True(t, i.Name != "lo" || i.Flags&net.FlagUp != 0, "the loopback interface is down")
		expect.True(t, i.Flags&net.FlagUp == 0 || i.Name == "lo", "interface %s of the machine is visible", i.Name)
	}

	out := expect.Value(exec.Command("ls", "/proc").Output())(t)
	processes := 0
	for name := range strings.FieldsSeq(string(out)) {
		if strings.Trim(name, "0123456789") == "" {
			processes++
		}
	}
	expect.True(t, processes <= 5, "%d processes are visible, want only the tests'", processes)
}

func TestControlGroupsAreItsOwn(t *testing.T) {
	needRoot(t)
	groups := expect.Value(os.ReadFile("/proc/self/cgroup"))(t)
	for line := range strings.Lines(string(groups)) {
		if strings.HasPrefix(line, "0::") {
			continue // v2 alone has to be shared
		}
		expect.True(t, strings.HasSuffix(line, ":/\n"), "the tests are in a group below the root: %s", line)
	}
	mine, err := os.ReadFile("/sys/fs/cgroup/pids/cgroup.procs")
	if errors.Is(err, fs.ErrNotExist) {
		return // v2 alone
	}
	expect.Check(t, err)
	if !slices.Contains(strings.Fields(string(mine)), strconv.Itoa(os.Getpid())) {
		t.Errorf("the root of the groups has the processes %q, and not this one", mine)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
}
