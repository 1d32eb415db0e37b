package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
)

// who is a user without any privileges, in one group.
type who struct{ uid, gid uint32 }

// asks is a request of a user; body, if not empty, is posted. It gives the
// status of the answer and its body.
func (r *rig) asks(w who, path, body string) (status int, answer string, err error) {
	args := []string{
		"--silent", "--show-error", "--unix-socket", r.Socket(), "http://margolite" + path,
		"--write-out", "\n%{http_code}", "--max-time", "60",
	}
	if body != "" {
		args = append(args, "--data", body)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(r.t.Context(), "curl", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: w.uid, Gid: w.gid}}
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, "", fmt.Errorf("%w: %s", err, stderr.String())
	}
	i := bytes.LastIndexByte(out, '\n')
	status, err = strconv.Atoi(string(out[i+1:]))
	return status, string(out[:i]), err
}

// A panel on the machine shows and approves a change over the socket, with curl
// and as a user of the group that may; nobody else gets in, and what needs root
// stays with root.
func TestPOL06ApprovedOverTheSocketByCurl(t *testing.T) {
	long(t, "requests by curl")
	const group, stranger = "operator", 65534
	found, err := user.LookupGroup(group)
	check(t, err)
	gid, err := strconv.ParseUint(found.Gid, 10, 32)
	check(t, err)
	panel := who{uid: stranger - 1, gid: uint32(gid)}
	r := newRig(t, "embedded")
	check(t, os.Chmod(r.dir, 0o711)) // as /run is
	s := ruled(map[string]string{"approval": "updates"})
	s.More = "control: {group: " + group + "}\n"
	check(t, r.Configure(s))
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.answers(8090)
	before := r.services(demoID)

	done := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus"}))
	var change *control.Pending
	r.eventually("the panel shows what waits", func() error {
		status, body, err := r.asks(panel, "/v1/status", "")
		if err != nil || status != 200 {
			return fmt.Errorf("%d %s, %w", status, body, err)
		}
		if change = decode[control.Status](t, body).Deployments[0].Change; change == nil || len(change.Services) == 0 {
			return errors.New(body)
		}
		return nil
	})
	if change.Revision != done.Digest.String() || change.Reasons[0].Code != "approval" {
		t.Errorf("what waits is %+v", change)
	}

	named := func(revision string) string {
		return fmt.Sprintf(`{"deployment": %q, "revision": %q, "reason": "shift 2"}`, demoID, revision)
	}
	if status, body, err := r.asks(panel, "/v1/prune", "[]"); err != nil || status != 403 {
		t.Errorf("what takes root is answered %d %s, %v", status, body, err)
	}
	for name, w := range map[string]who{"a user of no group": {stranger, stranger}, "the user in another group": {panel.uid, stranger}} {
		if status, body, err := r.asks(w, "/v1/approve", named(change.Revision)); err == nil {
			t.Errorf("%s got %d %s", name, status, body)
		}
	}
	r.waits(demoID, done.Digest, "approval")
	r.untouched(demoID, before)

	if status, body, err := r.asks(panel, "/v1/approve", named(change.Revision)); err != nil || status != 204 {
		t.Fatalf("the approval is answered %d %s, %v", status, body, err)
	}
	r.await(demoID, margo.Installed, done.Version)
	r.says(8090, "Servus")
	status, body, err := r.asks(panel, "/v1/history?last=20", "")
	check(t, err)
	by := ""
	for _, e := range decode[[]control.Entry](t, body) {
		if e.Kind == "change.approved" && e.Revision == change.Revision {
			by = e.By
		}
	}
	if want := fmt.Sprintf("user %d", panel.uid); status != 200 || by != want {
		t.Errorf("the journal says it was %q, want %q", by, want)
	}
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
