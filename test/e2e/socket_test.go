package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
)

// who is a user without any privileges, in one group.
type who struct{ uid, gid uint32 }

// curl speaks to the agent as a user, by path and as curl's other arguments say.
func (r *rig) curl(ctx context.Context, w who, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "curl", append([]string{"--silent", "--show-error", "--unix-socket", r.Socket(), "http://margolite" + path}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: w.uid, Gid: w.gid}}
	return cmd
}

// asks is a request of a user; body, if not empty, is posted. It gives the
// status of the answer and its body.
func (r *rig) asks(w who, path, body string) (status int, answer string, err error) {
	args := []string{"--write-out", "\n%{http_code}", "--max-time", "30"}
	if body != "" {
		args = append(args, "--data", body)
	}
	var stderr bytes.Buffer
	cmd := r.curl(r.t.Context(), w, path, args...)
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
	long(t, "the rest of policy")
	const group, stranger = "operator", 65534
	found, err := user.LookupGroup(group)
	check(t, err)
	gid, err := strconv.ParseUint(found.Gid, 10, 32)
	check(t, err)
	panel := who{uid: stranger - 1, gid: uint32(gid)}
	r := newRig(t, "embedded")
	check(t, os.Chmod(r.dir, 0o711)) // as /run is
	s := ruled(map[string]string{"approval": "updates"})
	s.Group = group
	check(t, r.Configure(s))
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.answers(8090)
	before := r.services(demoID)

	events := r.events(panel)
	done := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus"}))
	events("change.waits")
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
	for name, c := range map[string]struct {
		path, body string
		status     int
	}{
		"another revision":      {"/v1/approve", named("sha256:" + strings.Repeat("0", 64)), 409},
		"no revision":           {"/v1/approve", named(""), 400},
		"another deployment":    {"/v1/approve", strings.Replace(named(change.Revision), demoID, "b0a7e1c2-0000-4000-8000-00000000000f", 1), 404},
		"no JSON":               {"/v1/approve", "approve it", 400},
		"too much":              {"/v1/reject", named(strings.Repeat("x", 100<<10)), 413},
		"what takes root":       {"/v1/prune", "[]", 403},
		"a shell in containers": {"/v1/exec", fmt.Sprintf(`{"deployment": %q, "service": "web", "args": ["/demoapp"]}`, demoID), 403},
		"no such request":       {"/v1/approval", "{}", 404},
	} {
		if status, body, err := r.asks(panel, c.path, c.body); err != nil || status != c.status || decode[map[string]any](t, body)["error"] == "" {
			t.Errorf("%s: got %d %s, %v, want %d", name, status, body, err, c.status)
		}
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
	events("change.approved")
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
	if status, body, err := r.asks(panel, "/v1/history/verify", ""); err != nil || status != 200 || decode[control.Verification](t, body).Problem != "" {
		t.Errorf("the journal: %d %s, %v", status, body, err)
	}

	// Locks are the site's, too.
	if status, body, err := r.asks(panel, "/v1/hold", `{"reason": "cleaning", "seconds": 3600}`); err != nil || status != 200 || decode[control.Lock](t, body).Until == nil {
		t.Errorf("a lock is answered %d %s, %v", status, body, err)
	}
	events("lock.taken")
	if status, body, err := r.asks(panel, "/v1/release", "{}"); err != nil || status != 200 || len(decode[[]control.Lock](t, body)) != 1 {
		t.Errorf("the release is answered %d %s, %v", status, body, err)
	}
	events("lock.released")
	check(t, r.Reconfigure(usual))
}

// events follows the events of the agent as a user; next waits for one of a kind.
func (r *rig) events(w who) (next func(kind string)) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	cmd := r.curl(ctx, w, "/v1/events", "--no-buffer", "--include")
	out, err := cmd.StdoutPipe()
	check(r.t, err)
	check(r.t, cmd.Start())
	r.t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was ended
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "" { // once there is an answer no event is missed
	}
	return func(kind string) {
		r.t.Helper()
		var seen []string
		for lines.Scan() {
			var e control.Event
			check(r.t, json.Unmarshal(lines.Bytes(), &e))
			if seen = append(seen, string(e.Kind)); string(e.Kind) == kind {
				return
			}
		}
		r.t.Fatalf("there is no event %s among %v", kind, seen)
	}
}
