package git_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/git"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/gitserver"
)

// Ids of deployments.
const (
	one = "11111111-8912-45f4-a523-372358765def"
	two = "22222222-8912-45f4-a523-372358765def"
)

// document is a deployment, of the last revision.
func document(id, note string) string {
	return "id: " + id + "\nmetadata:\n  name: app\n  namespace: n\n  deviceId: gw\nspec: # " + note + "\n  applicationId: app\n"
}

// repository is a bare repository that a server serves.
type repository struct {
	*gitserver.Repository
	t *testing.T
}

// run runs git in the repository, with nothing of the machine's configuration.
func (r *repository) run(input string, args ...string) string {
	r.t.Helper()
	return expect.Value(r.Git(input, args...))(r.t)
}

type change = gitserver.Change

// commit makes a commit and sets the branch to it.
func (r *repository) commit(c change) string {
	r.t.Helper()
	return expect.Value(r.Commit(c))(r.t)
}

// files is the usual content of a commit.
func files(documents ...string) map[string]string {
	all := map[string]string{"README.md": "for people\n"}
	for i, d := range documents {
		all[fmt.Sprintf("apps/%d.yaml", i)] = d
	}
	return all
}

// server serves one repository over TLS, in the way of git's own http-backend.
type server struct {
	*httptest.Server
	repository *repository

	mu      sync.Mutex
	token   string // "user:password" that is asked for; empty: none
	refuse  int    // status to answer with instead
	broken  bool   // packs are damaged on the way
	lose    bool   // the answer to a push is lost on the way
	hold    chan struct{}
	held    chan struct{}
	answer  http.HandlerFunc // answers instead
	after   func(kind string)
	asked   []string // what was asked for: "info", "ls-refs", "fetch"
	header  http.Header
	backend http.Handler
}

func newServer(t *testing.T, init ...string) *server {
	t.Helper()
	if _, err := gitserver.Program(); err != nil {
		t.Skip("needs git")
	}
	root := t.TempDir()
	r := expect.Value(gitserver.NewRepository(filepath.Join(root, "gw.git"), init...))(t)
	s := &server{repository: &repository{r, t}}
	s.backend = expect.Value(gitserver.Backend(root))(t)
	s.Server = httptest.NewUnstartedServer(s)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "cannot read", http.StatusBadRequest)
		return
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	kind := "info"
	switch {
	case bytes.Contains(body, []byte("command=ls-refs")):
		kind = "ls-refs"
	case r.Method == http.MethodPost:
		kind = "fetch"
	}
	s.mu.Lock()
	s.asked = append(s.asked, kind)
	s.header = r.Header.Clone()
	token, refuse, broken, hold, held := s.token, s.refuse, s.broken, s.hold, s.held
	answer, after, lose := s.answer, s.after, s.lose
	s.mu.Unlock()

	switch {
	case answer != nil:
		answer(w, r)
		return
	case refuse >= 300 && refuse < 400:
		http.Redirect(w, r, "/elsewhere"+r.URL.Path, refuse)
		return
	case refuse != 0:
		http.Error(w, "no", refuse)
		return
	case token != "" && !gitserver.Authorized(r, token):
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	case lose && strings.HasSuffix(r.URL.Path, "/git-receive-pack"):
		s.backend.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case kind == "fetch" && (broken || hold != nil):
		answer := httptest.NewRecorder()
		s.backend.ServeHTTP(answer, r)
		for key, values := range answer.Header() {
			w.Header()[key] = values
		}
		content := answer.Body.Bytes()
		at := bytes.Index(content, []byte("PACK"))
		if at < 0 {
			_, _ = w.Write(content)
			return
		}
		if broken {
			content[at+20] ^= 0xFF
			_, _ = w.Write(content)
			return
		}
		_, _ = w.Write(content[:at+12])
		w.(http.Flusher).Flush()
		select {
		case held <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		select {
		case <-hold:
		case <-r.Context().Done():
		}
		return
	}
	s.backend.ServeHTTP(w, r)
	if after != nil {
		after(kind)
	}
}

func (s *server) set(f func(*server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// requests returns what was asked for since it was called last.
func (s *server) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

func (s *server) fetches() int {
	n := 0
	for _, kind := range s.requests() {
		if kind == "fetch" {
			n++
		}
	}
	return n
}

// ca writes the anchor of the server's certificate into a file.
func (s *server) ca(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}
	check(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	return file
}

// options are those of a device that gets its state from the server, with patience for
// a machine that is busy.
func (s *server) options(t *testing.T) git.Options {
	t.Helper()
	return git.Options{
		URL: "git+" + s.URL + "/gw.git", CA: s.ca(t), Dir: filepath.Join(t.TempDir(), "git"), Timeout: 5 * time.Minute,
		Logger: slog.New(slog.DiscardHandler), Now: time.Now,
	}
}

func newSource(t *testing.T, o git.Options) *git.Source {
	t.Helper()
	return expect.Value(git.New(o))(t)
}

// begin serves a repository to a device, beside other tests.
func begin(t *testing.T, init ...string) (*server, git.Options, *git.Source) {
	t.Helper()
	t.Parallel()
	s := newServer(t, init...)
	o := s.options(t)
	return s, o, newSource(t, o)
}

// poll gets the manifest, which must succeed.
func poll(t *testing.T, source *git.Source, etag string) *wfm.Manifest {
	t.Helper()
	return expect.Value(source.Manifest(t.Context(), etag))(t)
}

// get gets all documents of a manifest, by the id of the deployment.
func get(t *testing.T, source *git.Source, m *wfm.Manifest) map[string]string {
	t.Helper()
	bodies := map[digest.Digest]string{}
	check(t, source.Documents(t.Context(), m, m.Deployments, func(d digest.Digest, body []byte) error {
		if _, again := bodies[d]; again || digest.FromBytes(body) != d {
			t.Errorf("document %s came again, or with other bytes", d)
		}
		bodies[d] = string(body)
		return nil
	}))
	byID := map[string]string{}
	for _, ref := range m.Deployments {
		byID[ref.ID] = bodies[ref.Digest]
	}
	return byID
}

// reason is why a poll failed.
func reason(err error) git.Reason {
	if known, ok := errors.AsType[*git.Error](err); ok {
		return known.Reason
	}
	return ""
}

// refuses checks that the content of a commit is refused, for this reason, and
// that it is not fetched again.
func refuses(t *testing.T, s *server, source *git.Source, text string) {
	t.Helper()
	_, err := source.Manifest(t.Context(), "")
	if _, violations := errors.AsType[margo.Errors](err); !violations && !errors.Is(err, wfm.ErrTooLarge) {
		t.Fatalf("poll: %v, want the content to be refused", err)
	}
	expect.Contains(t, err.Error(), text, "refused with %q", err)
	s.requests()
	if _, again := source.Manifest(t.Context(), ""); again == nil || again.Error() != err.Error() {
		t.Errorf("refused with %q, the next time with %v", err, again)
	}
	if asked := s.requests(); slices.Contains(asked, "fetch") {
		t.Errorf("what is refused was fetched again: %s", asked)
	}
}

func basic(token string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(token))
}

// walk visits everything below a folder.
func walk(t *testing.T, dir string, visit func(path string, info os.FileInfo)) {
	t.Helper()
	check(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			visit(path, info)
		}
		return err
	}))
}

// tree lists every file below a folder with its size and time, to tell whether
// anything was written.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	walk(t, dir, func(path string, info os.FileInfo) {
		fmt.Fprintf(&b, "%s %d %s %s\n", path, info.Size(), info.Mode(), info.ModTime().Format(time.RFC3339Nano))
	})
	return b.String()
}

const maxTime = 253402300799

// noise is content that no compression makes smaller.
func noise(size int) string {
	b := make([]byte, size)
	_, _ = rand.Read(b)
	return string(b)
}

func sizeOf(t *testing.T, dir string) (size int64) {
	t.Helper()
	walk(t, dir, func(_ string, info os.FileInfo) {
		if info.Mode().IsRegular() {
			size += info.Size()
		}
	})
	return size
}

// contents is the text of every file below a folder.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	walk(t, dir, func(path string, info os.FileInfo) {
		body, err := os.ReadFile(path)
		if err != nil && info.Mode().IsRegular() {
			t.Error(err)
		}
		b.Write(body)
	})
	return b.String()
}

// commandLines are those of everything that runs on this machine.
func commandLines(t *testing.T) string {
	t.Helper()
	all := expect.Value(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	var b strings.Builder
	for _, file := range all {
		line, _ := os.ReadFile(file) // it may have ended
		b.Write(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
		b.WriteByte('\n')
	}
	return b.String()
}

func remove(t *testing.T, path string) {
	t.Helper()
	check(t, os.RemoveAll(path))
}

// write writes a file where there may be none to be written.
func write(t *testing.T, path, content string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		_ = os.Remove(path)
		err = os.WriteFile(path, []byte(content), 0o600)
	}
	check(t, err)
}

func each(t *testing.T, pattern string, f func(file string) error) {
	t.Helper()
	all, err := filepath.Glob(pattern)
	for _, file := range all {
		err = errors.Join(err, os.Chmod(file, 0o600), f(file))
	}
	check(t, err)
}

var check = expect.Check
