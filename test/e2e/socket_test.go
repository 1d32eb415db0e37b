package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
)

// approvedBy asks for an approval as a user without any privileges, and gives the status of
// the answer.
func (r *rig) approvedBy(uid, gid uint32, revision digest.Digest) (status int, err error) {
	cmd := exec.CommandContext(r.t.Context(), "curl", "--silent", "--show-error", "--unix-socket", r.Socket(), "http://margolite/v1/approve",
		"--data", fmt.Sprintf(`{"deployment": %q, "revision": %q}`, demoID, revision), "--write-out", "\n%{http_code}", "--max-time", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	return strconv.Atoi(string(out[bytes.LastIndexByte(out, '\n')+1:]))
}

// A panel on the machine approves a change over the socket, with curl and as a user of
// the group that may; nobody else gets in.
func TestPOL06ApprovedOverTheSocketByCurl(t *testing.T) {
	long(t, "requests by curl")
	const group, panel, stranger = "operator", 65533, 65534
	found, err := user.LookupGroup(group)
	check(t, err)
	gid, err := strconv.ParseUint(found.Gid, 10, 32)
	check(t, err)
	r := newRig(t, "embedded")
	check(t, os.Chmod(r.dir, 0o711)) // as /run is
	s := ruled(map[string]string{"approval": "updates"})
	s.More = "control: {group: " + group + "}\n"
	check(t, r.Configure(s))
	r.running()
	r.install(r.Deployment(demoID, nil))
	before := r.services(demoID)
	done := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus"}))
	r.waits(demoID, done.Digest, "approval")
	for _, uid := range []uint32{stranger, panel} { // in another group
		if status, err := r.approvedBy(uid, stranger, done.Digest); err == nil {
			t.Errorf("user %d got %d", uid, status)
		}
	}
	r.waits(demoID, done.Digest, "approval")
	r.untouched(demoID, before)
	if status, err := r.approvedBy(panel, uint32(gid), done.Digest); err != nil || status != 204 {
		t.Fatalf("the approval is answered %d, %v", status, err)
	}
	r.await(demoID, margo.Installed, done.Version)
	check(t, r.Reconfigure(usual))
}

// Every conversation is begun by the device: the agent listens on no port, but
// on the sockets in its directory, which are for local users.
func TestPOL12POL13NobodyOnTheNetworkReachesTheAgent(t *testing.T) {
	long(t, "sockets of the agent")
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	own := make(map[string]bool) // inodes of the agent's sockets
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.Agent()))
	check(t, err)
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
		lines, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", r.Agent(), file))
		check(t, err)
		for line := range strings.Lines(string(lines)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == listening && own[f[9]] {
				t.Errorf("the agent listens on %s port %s", file, f[1])
			}
		}
	}
}
