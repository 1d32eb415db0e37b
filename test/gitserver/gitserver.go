// Package gitserver is a Git repository behind TLS for tests: a bare one, and
// git's own http-backend in front of it. Commits are made of what a test wants
// to be in them, without a work tree.
package gitserver

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/margolite/margolite/test/wfmsim/serving"
)

// Program finds git.
func Program() (string, error) { return exec.LookPath("git") }

// Repository is a bare repository.
type Repository struct {
	Dir  string
	Next time.Time // a minute before the committer time of the next commit
}

// NewRepository makes one with the branch main, which has no commit yet; more
// are further arguments of git init.
func NewRepository(dir string, more ...string) (*Repository, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	r := &Repository{Dir: dir, Next: time.Unix(1700000000, 0)}
	_, err := r.Git("", append([]string{"init", "--quiet", "--bare", "--initial-branch=main"}, more...)...)
	return r, err
}

// Git runs git in the repository, with nothing of the machine's configuration.
func (r *Repository) Git(input string, args ...string) (string, error) {
	program, err := Program()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = r.Dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C"}
	cmd.Stdin = strings.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// Change is one commit.
type Change struct {
	Branch string            // empty: main
	From   string            // the parent; empty: the branch's present commit
	Orphan bool              // no parent at all
	Files  map[string]string // what the commit has, all of it
	Links  map[string]string // symbolic links
	Others []string          // submodules
	At     time.Time         // when; zero: a minute after the one before
}

// Commit makes a commit, sets the branch to it, and returns its id.
func (r *Repository) Commit(c Change) (string, error) {
	if c.Branch == "" {
		c.Branch = "main"
	}
	if c.At.IsZero() {
		r.Next = r.Next.Add(time.Minute)
		c.At = r.Next
	}
	ref := "refs/heads/" + c.Branch
	var b bytes.Buffer
	fmt.Fprintf(&b, "commit %s\nmark :1\ncommitter A <a@b> %d +0000\ndata 1\nm\n", ref, c.At.Unix())
	switch {
	case c.From != "":
		fmt.Fprintf(&b, "from %s\n", c.From)
	case !c.Orphan:
		present, err := r.Git("", "for-each-ref", ref)
		if err != nil {
			return "", err
		}
		if present != "" {
			fmt.Fprintf(&b, "from %s^0\n", ref)
		}
	}
	b.WriteString("deleteall\n")
	for name, content := range c.Files {
		fmt.Fprintf(&b, "M 100644 inline %s\ndata %d\n%s\n", name, len(content), content)
	}
	for name, target := range c.Links {
		fmt.Fprintf(&b, "M 120000 inline %s\ndata %d\n%s\n", name, len(target), target)
	}
	for _, name := range c.Others {
		fmt.Fprintf(&b, "M 160000 %s %s\n", strings.Repeat("1", 40), name)
	}
	b.WriteString("\nget-mark :1\n")
	return r.Git(b.String(), "fast-import", "--quiet", "--force")
}

// Backend serves the repositories in a folder.
func Backend(root string) (http.Handler, error) {
	program, err := Program()
	if err != nil {
		return nil, err
	}
	return &cgi.Handler{
		Path: program, Args: []string{"http-backend"}, Dir: root,
		Env: []string{
			"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + root, "GIT_CONFIG_NOSYSTEM=1",
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		},
		Logger: slog.NewLogLogger(slog.DiscardHandler, 0), Stderr: io.Discard,
	}, nil
}

// Authorized says whether a request shows a token, as a password or by itself.
func Authorized(r *http.Request, token string) bool {
	user, password, _ := r.BasicAuth()
	return token == user+":"+password || "Bearer "+token == r.Header.Get("Authorization")
}

// name is where the repository of a Server is.
const name = "/gw.git"

// Server serves one repository. Its methods may be called from any goroutine.
type Server struct {
	Repository *Repository

	server  *serving.Server
	backend http.Handler

	mu    sync.Mutex
	token string
}

// New makes a server with an empty repository in a folder. Certificate is an
// ordinary one.
func New(dir string, certificate tls.Certificate) (*Server, error) {
	r, err := NewRepository(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	backend, err := Backend(dir)
	if err != nil {
		return nil, err
	}
	s := &Server{Repository: r, backend: backend}
	s.server = serving.New(serving.Options{
		Handler: s.answer,
		TLS:     &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
	})
	return s, nil
}

// Start opens the server, on the port that it had before if it had one.
func (s *Server) Start() error { return s.server.Start("") }

// Close ends all connections; Start opens the server again.
func (s *Server) Close() error { return s.server.Close() }

// URL is that of the repository.
func (s *Server) URL() string { return "https://" + s.server.Address() + name }

// SetToken makes the server ask for a token, "user:password" or one to be borne;
// empty: for none.
func (s *Server) SetToken(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	token := s.token
	s.mu.Unlock()
	if token != "" && !Authorized(r, token) {
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20)) // CGI wants to know the length
	if err != nil {
		http.Error(w, "cannot read", http.StatusBadRequest)
		return
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	s.backend.ServeHTTP(w, r)
}
