package git_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/git"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/gitserver"
)

// reports carries back to the server, from a work folder of the test's own.
func (s *server) reports(t *testing.T, change ...func(*git.Options)) *git.Reports {
	t.Helper()
	s.repository.run("", "config", "http.receivepack", "true")
	o := s.options(t)
	o.Branch, o.Path, o.Dir = "state", "gw-07", filepath.Join(t.TempDir(), "reports")
	for _, c := range change {
		c(&o)
	}
	return expect.Value(git.NewReports(o, "gw-07"))(t)
}

func statusOf(t *testing.T, id string, state margo.State, version uint64) []byte {
	t.Helper()
	s := margo.Status{DeploymentID: id, DeviceID: "gw-07", AdoptedVersion: version, State: state}
	if state == margo.Failed {
		s.Error = &margo.Fault{Code: "SERVICE_EXITED", Source: "app", Message: "it ended"}
	}
	return expect.Value(s.Marshal())(t)
}

// history is what the branch with the reports tells, oldest first.
func (s *server) history() []string {
	out, err := s.repository.Git("", "log", "--reverse", "--format=%s", "state")
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(out), "\n")
}

func (s *server) documents() string {
	return strings.Join(strings.Fields(s.repository.run("", "ls-tree", "-r", "--name-only", "state")), " ")
}

// ST-19: changes after each other, in which pushes are refused, lost on the way there and lost on
// the way back: the history of the branch is what happened.
func TestST19TheBranchTellsWhatHappened(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r := s.reports(t)
	var want []string
	tell := func(id string, state margo.State, version uint64) {
		t.Helper()
		body := statusOf(t, id, state, version)
		for {
			if err := r.PostStatus(t.Context(), id, body); err == nil {
				break
			}
			s.set(func(s *server) { s.refuse, s.lose = 0, false }) // what was in the way passes
		}
		subject := fmt.Sprintf("Deployment %s: %s", id, state)
		if state == margo.Failed {
			subject += ", SERVICE_EXITED"
		}
		want = append(want, subject)
	}
	check(t, r.PutCapabilities(t.Context(), "gw-07", []byte(`{"properties":{"id":"gw-07"}}`)))
	want = append(want, "Capabilities of device gw-07")
	for n := range 8 {
		switch n % 4 {
		case 1:
			s.set(func(s *server) { s.refuse = http.StatusServiceUnavailable })
		case 2:
			s.set(func(s *server) { s.lose = true })
		case 3: // somebody else writes there, too
			s.repository.run("", "update-ref", "refs/heads/state", s.repository.commit(change{
				Branch: "other", From: "state", Files: map[string]string{"gw-08/x": fmt.Sprint(n)}, At: time.Now(),
			}))
			want = append(want, "change")
		}
		tell(one, []margo.State{margo.Pending, margo.Installing, margo.Installed, margo.Failed}[n%4], uint64(n+1))
	}
	tell(two, margo.Installed, 30)
	tell(one, margo.Removed, 31)
	if got := s.history(); len(got) != len(want) {
		t.Errorf("the branch tells\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	} else {
		for i := range want {
			if got[i] != want[i] && want[i] != "change" {
				t.Errorf("commit %d is %q, want %q", i, got[i], want[i])
			}
		}
	}
	if got := s.documents(); !strings.Contains(got, "gw-07/deployments/"+two+".json") || strings.Contains(got, one) || !strings.Contains(got, "gw-08/x") {
		t.Errorf("the branch has %s", got)
	}
	expect.Contains(t, s.repository.run("", "show", "state:gw-07/deployments/"+two+".json"), "\n  \"deploymentId\": \""+two, "a status")
}

// hook makes a program a hook of the repository.
func (s *server) hook(name, program string) {
	s.repository.t.Helper()
	dir := strings.TrimSpace(s.repository.run("", "rev-parse", "--absolute-git-dir"))
	check(s.repository.t, errors.Join(os.MkdirAll(filepath.Join(dir, "hooks"), 0o755), os.WriteFile(filepath.Join(dir, "hooks", name), []byte(program), 0o755)))
}

// What is told twice is one commit, also after a restart. A history that is rewritten, and a
// branch that is gone, lose nothing of this device. A damaged copy is made again.
func TestST19ABranchThatIsRewritten(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	dir := filepath.Join(t.TempDir(), "reports")
	var r *git.Reports
	post := func(id string, state margo.State) {
		t.Helper()
		check(t, r.PostStatus(t.Context(), id, statusOf(t, id, state, 1)))
	}
	for range 2 {
		r = s.reports(t, func(o *git.Options) { o.Dir = dir })
		post(one, margo.Installed)
		post(one, margo.Installed)
	}
	expect.Equal(t, len(s.history()), 1, "commits in %q", s.history())
	s.repository.commit(change{Branch: "state", Orphan: true, Files: map[string]string{"README.md": "anew"}, At: time.Now()})
	post(two, margo.Installed)
	expect.Equal(t, s.documents(), "README.md gw-07/deployments/"+one+".json gw-07/deployments/"+two+".json", "documents on the branch")
	s.repository.run("", "update-ref", "-d", "refs/heads/state")
	post(two, margo.Failed)
	expect.Equal(t, s.documents(), "README.md gw-07/deployments/"+one+".json gw-07/deployments/"+two+".json", "documents on the branch")
	folders := s.repository.run("", "rev-parse", "state^{tree}")
	remove(t, filepath.Join(dir, "repository/objects", folders[:2], folders[2:]))
	expect.Equal(t, reason(r.PostStatus(t.Context(), one, statusOf(t, one, margo.Failed, 2))), git.Local, "with a damaged copy")
	post(one, margo.Failed)
	expect.Equal(t, len(s.history()), 4, "commits in %q", s.history())
}

// A server that rejects every push is an error that says what to do. Weeks of it leave
// nothing behind that grows, also when the agent was started meanwhile, and the branch
// tells the state that holds when it accepts again.
func TestST19PushesThatAreRejected(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	dir := filepath.Join(t.TempDir(), "reports")
	start := func() *git.Reports { return s.reports(t, func(o *git.Options) { o.Dir = dir }) }
	check(t, start().PostStatus(t.Context(), two, statusOf(t, two, margo.Installed, 1)))
	s.hook("pre-receive", "#!/bin/sh\necho no >&2\nexit 1\n")
	const loose = 480 // files of objects, left by some 120 commits: just below the limit
	var names strings.Builder
	work := t.TempDir()
	for i := range loose {
		name := filepath.Join(work, fmt.Sprint(i))
		write(t, name, fmt.Sprint(i))
		fmt.Fprintln(&names, name)
	}
	left := repository{&gitserver.Repository{Dir: filepath.Join(dir, "repository")}, t}
	left.run(names.String(), "hash-object", "-w", "--stdin-paths")
	r := start()
	for n := range 12 {
		err := r.PostStatus(t.Context(), one, statusOf(t, one, margo.Installed, uint64(n+1)))
		if known, ok := errors.AsType[*git.Error](err); !ok || known.Reason != git.Rejected || known.Mend() == "" {
			t.Fatalf("error is %v", err)
		}
	}
	if files := strings.Count(tree(t, dir), "\n"); files > loose/2 {
		t.Errorf("the work folder has %d files", files)
	}
	s.hook("pre-receive", "#!/bin/sh\nexit 0\n")
	check(t, r.PostStatus(t.Context(), one, statusOf(t, one, margo.Failed, 300)))
	expect.Equal(t, s.history(), []string{"Deployment " + two + ": installed", "Deployment " + one + ": failed, SERVICE_EXITED"}, "the branch")
	expect.Equal(t, s.documents(), "gw-07/deployments/"+one+".json gw-07/deployments/"+two+".json", "the branch")
}
