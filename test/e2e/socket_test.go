package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// Every conversation is begun by the device: the agent listens on no port, but
// on the sockets in its directory, which are for local users.
func TestPOL12POL13NobodyOnTheNetworkReachesTheAgent(t *testing.T) {
	long(t, "sockets of the agent")
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	own := make(map[string]bool) // inodes of the agent's sockets
	descriptors := expect.Value(filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.Agent())))(t)
	for _, d := range descriptors {
		target, _ := os.Readlink(d) // what was closed meanwhile is no socket
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	if len(own) == 0 {
		t.Fatal("the agent has no sockets at all")
	}
	const listening = "0A"
	for _, file := range []string{"tcp", "tcp6"} {
		lines := expect.Value(os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", r.Agent(), file)))(t)
		for line := range strings.Lines(string(lines)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == listening && own[f[9]] {
				t.Errorf("the agent listens on %s port %s", file, f[1])
			}
		}
	}
}
