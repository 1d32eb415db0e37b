package git_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/git"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
)

func TestDS27WatchesTheBranch(t *testing.T) {
	s, o, source := begin(t)
	// What cannot be run fails alone, as with any WFM: all that is asked of it here is an id.
	odd := "kind: ApplicationDeployment\nmetadata:\n  annotations:\n    id: " + two + "\nspec: nonsense\n"
	commit := s.repository.commit(change{Files: files(odd, document(one, "b"), "kind: Kustomization\n")})
	m := poll(t, source, "")

	t.Run("DS-27 every deployment of the branch is in the manifest", func(t *testing.T) {
		if len(m.Deployments) != 2 || m.Deployments[0].ID != one || m.Deployments[1].ID != two {
			t.Fatalf("deployments are %+v", m.Deployments)
		}
		if m.ETag != `"`+commit+`"` || m.Version != 1700000060000 || m.Digest != digest.FromBytes(m.Raw) {
			t.Errorf("ETag %s, version %d, digest %s", m.ETag, m.Version, m.Digest)
		}
		if got := get(t, source, m); got[one] != document(one, "b") || got[two] != odd {
			t.Errorf("documents are %q", got)
		}
	})
	t.Run("DS-05 the same commit is no news, and nothing is fetched or written", func(t *testing.T) {
		before := tree(t, o.Dir)
		s.requests()
		expect.Error(t, expect.ErrorOf(source.Manifest(t.Context(), m.ETag)), wfm.ErrNotModified, "second poll")
		if asked := s.requests(); len(asked) > 2 || slices.Contains(asked, "fetch") {
			t.Errorf("the server was asked for %s", asked)
		}
		expect.Equal(t, tree(t, o.Dir), before, "work folder")
	})
	t.Run("POL-13 the server hears of the device only when it polls", func(t *testing.T) {
		accepted := len(s.requests())
		s.repository.commit(change{Files: files(document(one, "c"))})
		if asked := s.requests(); accepted+len(asked) != 0 {
			t.Errorf("the server was asked for %s between polls", asked)
		}
		if next := poll(t, source, m.ETag); next.Version <= m.Version {
			t.Errorf("version %d, then %d", m.Version, next.Version)
		}
	})
	t.Run("the same commit is the same manifest, also on another device", func(t *testing.T) {
		here, there := poll(t, source, ""), poll(t, newSource(t, s.options(t)), "")
		if here.Digest != there.Digest || here.Version != there.Version || !bytes.Equal(here.Raw, there.Raw) {
			t.Errorf("manifest is %s, elsewhere %s", here.Raw, there.Raw)
		}
	})
	t.Run("after a restart nothing is fetched that is there", func(t *testing.T) {
		s.requests()
		again := newSource(t, o)
		get(t, again, poll(t, again, ""))
		expect.Equal(t, s.fetches(), 0, "fetches")
	})
	t.Run("the work folder is nobody else's", func(t *testing.T) {
		expect.Equal(t, expect.Value(os.Stat(o.Dir))(t).Mode().Perm(), 0o700, "work folder")
	})
}

// Who only wants to know whether the repository is within reach fetches nothing.
func TestTipFetchesNothing(t *testing.T) {
	s, _, source := begin(t)
	expect.Equal(t, reason(expect.ErrorOf(source.Tip(t.Context()))), git.NoBranch, "tip")
	commit := s.repository.commit(change{Files: files(document(one, "1"))})
	if tip, err := source.Tip(t.Context()); err != nil || tip != commit {
		t.Errorf("tip is %s, %v, want %s", tip, err, commit)
	}
	expect.Equal(t, s.fetches(), 0, "fetches")
}

func TestDS28TakesUpWhatChanges(t *testing.T) {
	s, _, source := begin(t)
	first := s.repository.commit(change{Files: files(document(one, "1"), document(two, "1"))})
	m1 := poll(t, source, "")
	s.repository.commit(change{Files: files(document(one, "2"), document(two, "1"))})
	m2 := poll(t, source, m1.ETag)

	t.Run("DS-28 a push is newer", func(t *testing.T) {
		if m2.Version <= m1.Version || m2.Deployments[0].Digest == m1.Deployments[0].Digest || m2.Deployments[1] != m1.Deployments[1] {
			t.Errorf("manifest was %s, is %s", m1.Raw, m2.Raw)
		}
		expect.Equal(t, get(t, source, m2)[one], document(one, "2"), "documents")
	})
	t.Run("DS-28 a revert is newer", func(t *testing.T) {
		s.repository.commit(change{Files: files(document(one, "1"), document(two, "1"))})
		m3 := poll(t, source, m2.ETag)
		if m3.Version <= m2.Version || m3.Deployments[0] != m1.Deployments[0] {
			t.Errorf("version %d after %d, deployments %+v", m3.Version, m2.Version, m3.Deployments)
		}
	})
	t.Run("DS-06 a branch that is set back is older", func(t *testing.T) {
		s.repository.run("", "update-ref", "refs/heads/main", first)
		if back := poll(t, source, m2.ETag); back.Version != m1.Version || back.Digest != m1.Digest {
			t.Errorf("version %d, the first time %d", back.Version, m1.Version)
		}
	})
	t.Run("DS-28 another history is newer once it is", func(t *testing.T) {
		s.repository.commit(change{Orphan: true, Files: files(document(one, "other"))})
		if m := poll(t, source, m2.ETag); m.Version <= m2.Version || len(m.Deployments) != 1 {
			t.Errorf("manifest is %s", m.Raw)
		}
	})
	t.Run("DS-06 commits of one second are told apart", func(t *testing.T) {
		at := s.repository.Next.Add(time.Hour)
		var last uint64
		for i := range 3 {
			s.repository.commit(change{Files: files(document(one, fmt.Sprint("s", i))), At: at})
			m := poll(t, source, "")
			expect.True(t, m.Version > last, "version %d after %d", m.Version, last)
			last = m.Version
		}
		// Whoever comes next has a clock that is behind.
		s.repository.commit(change{Files: files(document(one, "behind")), At: at.Add(-10 * time.Minute)})
		if m := poll(t, source, ""); m.Version <= last {
			t.Errorf("version %d after %d", m.Version, last)
		}
	})
	t.Run("DS-15 files that are no deployments are an empty state", func(t *testing.T) {
		s.repository.commit(change{Files: map[string]string{"README.md": "nothing yet\n"}, At: s.repository.Next.Add(2 * time.Hour)})
		m := poll(t, source, m2.ETag)
		if m.Deployments == nil || len(m.Deployments) != 0 || !bytes.Contains(m.Raw, []byte(`"deployments":[]`)) {
			t.Errorf("manifest is %s", m.Raw)
		}
		get(t, source, m)
	})
}

// The branch moves between the question and the fetch.
func TestTheManifestIsOfWhatWasFetched(t *testing.T) {
	s, _, source := begin(t)
	s.repository.commit(change{Files: files(document(one, "1"))})
	var later string
	s.set(func(s *server) {
		s.after = func(kind string) {
			if kind == "ls-refs" && later == "" {
				later = s.repository.commit(change{Files: files(document(one, "2"))})
			}
		}
	})
	expect.Equal(t, poll(t, source, "").ETag, `"`+later+`"`, "manifest")
}

func TestAUTH12GitToken(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	o := s.options(t)
	file := filepath.Join(t.TempDir(), "token")
	o.Token = func() (string, error) {
		token, err := os.ReadFile(file)
		return string(token), err
	}
	var log bytes.Buffer
	o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	source := newSource(t, o)
	s.repository.commit(change{Files: files(document(one, "1"))})

	t.Run("AUTH-12 without a token there is no access", func(t *testing.T) {
		s.set(func(s *server) { s.token = "x-access-token:first-secret" })
		if _, err := source.Manifest(t.Context(), ""); reason(err) != git.NoToken || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("poll: %v", err)
		}
		expect.Equal(t, s.requests(), nil, "requests")
		open := o
		open.Token, open.Dir = nil, t.TempDir()
		expect.Equal(t, reason(expect.ErrorOf(newSource(t, open).Manifest(t.Context(), ""))), git.Unauthorized, "poll")
	})
	t.Run("AUTH-12 the token opens the repository", func(t *testing.T) {
		write(t, file, "first-secret\n")
		get(t, source, poll(t, source, ""))
	})
	t.Run("AUTH-12 a token that was rotated does not", func(t *testing.T) {
		s.set(func(s *server) { s.token = "x-access-token:second-secret" })
		_, err := source.Manifest(t.Context(), "")
		expect.Require(t, reason(err) == git.Unauthorized, "poll: %v", err)
		known, ok := errors.AsType[*git.Error](err)
		if again, _ := wfm.Retry(err); again || !ok || !known.Answered() || known.Mend() == "" {
			t.Errorf("error is %#v, to be retried: %v", known, again)
		}
	})
	t.Run("AUTH-12 its successor is used without a restart", func(t *testing.T) {
		write(t, file, "second-secret\n")
		poll(t, source, "")
	})
	for name, token := range map[string]string{
		"AUTH-12 a name of its own goes with a token": "gitlab-deploy:third-secret",
		"AUTH-12 a whole header":                      basic("a:fourth-secret"),
		"AUTH-12 a bearer token":                      "Bearer fifth-secret",
	} {
		t.Run(name, func(t *testing.T) {
			write(t, file, token)
			s.set(func(s *server) { s.token = "" })
			s.repository.commit(change{Files: files(document(one, name))})
			poll(t, source, "")
			want := token
			if !strings.Contains(token, " ") {
				want = basic(token)
			}
			s.set(func(s *server) {
				if got := s.header.Values("Authorization"); len(got) != 1 || got[0] != want {
					t.Errorf("Authorization is %q, want %q", got, want)
				}
			})
		})
	}
	t.Run("AUTH-12 a token that is none is not sent", func(t *testing.T) {
		for _, token := range []string{"", "\n", "two\nlines", "a\x00b", strings.Repeat("x", 9<<10)} {
			write(t, file, token)
			if _, err := source.Manifest(t.Context(), ""); reason(err) != git.NoToken || len(err.Error()) > 200 || strings.Contains(err.Error(), "lines") {
				t.Errorf("token %.20q: %v", token, err)
			}
		}
	})
	t.Run("ID-25 the token is in no argument, error or log", func(t *testing.T) {
		const secret = "sixth-secret"
		write(t, file, secret)
		hold, held := make(chan struct{}), make(chan struct{})
		s.set(func(s *server) { s.token, s.hold, s.held = "x-access-token:"+secret, hold, held })
		s.repository.commit(change{Files: files(document(one, "held"))})
		ended := make(chan error)
		go func() {
			_, err := source.Manifest(t.Context(), "")
			ended <- err
		}()
		<-held
		commands := commandLines(t)
		close(hold)
		err := <-ended
		s.set(func(s *server) { s.hold = nil })
		expect.Contains(t, commands, s.URL, "no git is running")
		encoded := strings.TrimPrefix(basic("x-access-token:"+secret), "Basic ")
		for what, text := range map[string]string{"arguments": commands, "error": fmt.Sprint(err), "log": log.String(), "work folder": contents(t, o.Dir)} {
			expect.True(t, !strings.Contains(text, secret) && !strings.Contains(text, encoded), "the token is in the %s: %s", what, text)
		}
	})
}

func TestServersThatAreOfNoUse(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	elsewhere := newServer(t)
	s.repository.commit(change{Files: files(document(one, "1"))})
	tests := []struct {
		name   string
		set    func(*server)
		change func(*git.Options)
		want   git.Reason
		retry  bool
	}{
		{name: "not known", set: func(s *server) { s.refuse = 404 }, want: git.NoRepository},
		{name: "forbidden", set: func(s *server) { s.refuse = 403 }, want: git.Unauthorized},
		{name: "overloaded", set: func(s *server) { s.refuse = 503 }, want: git.Unreachable, retry: true},
		{name: "asked too often", set: func(s *server) { s.refuse = 429 }, want: git.Unreachable, retry: true},
		{name: "moved", set: func(s *server) { s.refuse = 301 }, want: git.Redirected},
		{name: "moved to another server", set: func(s *server) {
			s.answer = func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, elsewhere.URL+r.URL.RequestURI(), http.StatusFound)
			}
		}, want: git.Redirected},
		{name: "a page", set: func(s *server) {
			s.answer = func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprint(w, "<html>certificate Permission denied</html>")
			}
		}, want: git.NoBranch},
		{name: "an answer without an end", set: func(s *server) {
			s.answer = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
				for r.Context().Err() == nil {
					fmt.Fprint(w, "0044"+strings.Repeat("a", 40)+" refs/heads/"+strings.Repeat("b", 12)+"\n")
				}
			}
		}, change: func(o *git.Options) { o.Timeout = time.Second }, want: git.Unreachable, retry: true},
		{name: "another authority", change: func(o *git.Options) { o.CA = "" }, want: git.Untrusted, retry: true},
		{name: "an anchor that is missing", change: func(o *git.Options) { o.CA += ".old" }, want: git.Untrusted, retry: true},
		{name: "no server", change: func(o *git.Options) { o.URL = "https://127.0.0.1:1/gw.git" }, want: git.Unreachable, retry: true},
		{name: "no name", change: func(o *git.Options) { o.URL = "https://" + strings.Repeat("n", 64) + ".invalid/certificate.git" }, want: git.Unreachable, retry: true},
		{name: "no branch", change: func(o *git.Options) { o.Branch = "devices/gw-07" }, want: git.NoBranch},
		{name: "a branch that only ends like it", change: func(o *git.Options) { o.Branch = "n" }, want: git.NoBranch},
		{name: "no folder", change: func(o *git.Options) { o.Path = "devices" }, want: git.NoFolder},
		{name: "a file for a folder", change: func(o *git.Options) { o.Path = "README.md" }, want: git.NoFolder},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := s.options(t)
			if tt.change != nil {
				tt.change(&o)
			}
			s.set(func(s *server) {
				s.refuse, s.answer = 0, nil
				if tt.set != nil {
					tt.set(s)
				}
			})
			_, err := newSource(t, o).Manifest(t.Context(), "")
			expect.Equal(t, reason(err), tt.want, "reason of %v", err)
			if again, _ := wfm.Retry(err); again != tt.retry {
				t.Errorf("to be retried: %v, want %v: %v", again, tt.retry, err)
			}
		})
	}
	expect.Equal(t, elsewhere.requests(), nil, "requests after a redirect")
}

func TestDS27ContentThatIsRefused(t *testing.T) {
	t.Parallel()
	deployment := files(document(one, "1"))
	with := func(name, content string) map[string]string {
		all := files(document(one, "1"))
		all[name] = content
		return all
	}
	tests := []struct {
		name   string
		change change
		limits wfm.Limits
		want   string // in the error
	}{
		{name: "DS-17 two documents of one deployment", change: change{Files: files(document(one, "1"), document(strings.ToUpper(one), "2"))}, want: "apps/1.yaml: has the deployment id"},
		{name: "a symbolic link", change: change{Files: deployment, Links: map[string]string{"apps/z.yaml": "/etc/passwd"}}, want: "apps/z.yaml: is a symbolic link"},
		{name: "a folder that is a symbolic link", change: change{Files: deployment, Links: map[string]string{"apps/more": ".."}}, want: "apps/more: is a symbolic link"},
		{name: "a submodule", change: change{Files: deployment, Others: []string{"apps/more"}}, want: "apps/more: is another repository"},
		{name: "a document that is too large", change: change{Files: with("a.yaml", strings.Repeat("#", 300<<10))}, want: "a.yaml has more than"},
		{name: "documents that are too large together", change: change{Files: with("a.yaml", strings.Repeat("#", 3<<10))}, limits: wfm.Limits{Expanded: 2 << 10}, want: "all YAML files together"},
		{name: "too many files", change: change{Files: with("a", "")}, limits: wfm.Limits{Entries: 2}, want: "more than 2 files"},
		{name: "a path that is too deep", change: change{Files: with(strings.Repeat("d/", 40)+"a", "")}, want: "deeper than 32 folders"},
		{name: "a path that is too long", change: change{Files: with(strings.Repeat("d", 9<<10)+".yaml", "")}, want: "has a path of more than"},
		{name: "AD-02 a deployment without an id", change: change{Files: with("a.yml", "kind: ApplicationDeployment\n")}, want: "a.yml: cannot accept application deployment: /id: is missing [AD-02]"},
		{name: "a repository that is too large", change: change{Files: with("noise.bin", noise(2<<20))}, limits: wfm.Limits{Bundle: 1 << 20}, want: "larger than its limit"},
		{name: "a commit at no time", change: change{Files: deployment, At: time.Unix(maxTime+1, 0)}, want: "invalid time"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			o := s.options(t)
			o.Limits = tt.limits
			source := newSource(t, o)
			s.repository.commit(tt.change)
			refuses(t, s, source, tt.want)
			if size := sizeOf(t, o.Dir); size > 2<<20 {
				t.Errorf("the work folder has %d bytes", size)
			}
			// The next commit is taken as if nothing had been.
			s.repository.commit(change{Orphan: true, Files: deployment})
			get(t, source, poll(t, source, ""))
		})
	}
}

func TestDS27UnsoundObjectsAreRefused(t *testing.T) {
	s, _, source := begin(t)
	s.repository.commit(change{Files: files(document(one, "1"))})
	m := poll(t, source, "")
	tree := s.repository.run("", "rev-parse", "main^{tree}")
	config := s.repository.run("[core]\nfsmonitor = x\n", "hash-object", "-w", "--stdin")
	folder := s.repository.run("100644 blob "+config+"\tconfig\n", "mktree")
	for name, object := range map[string]string{
		"a commit without an author": "tree " + tree + "\n\nm\n",
		"a folder called .git": "tree " + s.repository.run("040000 tree "+folder+"\t.GIT\n", "mktree") +
			"\nauthor A <a@b> 1800000000 +0000\ncommitter A <a@b> 1800000000 +0000\n\nm\n",
	} {
		t.Run(name, func(t *testing.T) {
			commit := s.repository.run(object, "hash-object", "-w", "-t", "commit", "--stdin", "--literally")
			s.repository.run("", "update-ref", "refs/heads/main", commit)
			refuses(t, s, source, "is corrupt")
			expect.ErrorWith(t, expect.ErrorOf(source.Manifest(t.Context(), m.ETag)), "", "poll")
		})
	}
}

func TestDS27FolderOfTheDevice(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	o := s.options(t)
	o.Path, o.Branch = "/devices/gw 07[*]/", "site/north"
	source := newSource(t, o)
	all := map[string]string{
		"devices/gw 07[*]/app.yaml":      document(one, "1"),
		"devices/gw 07[*]/more/app.yml":  document(two, "1"),
		"devices/gw 07[*]/more/app.json": "{",
		"devices/gw 07[*] b/app.yaml":    document(two, "of another device"),
		"devices/gw 07*/app.yaml":        "{{ a template }}: {{",
	}
	links := map[string]string{"devices/other": "gw"}
	s.repository.commit(change{Branch: "site/north", Files: all, Links: links})
	m := poll(t, source, "")
	if got := get(t, source, m); len(got) != 2 || got[two] != document(two, "1") {
		t.Errorf("documents are %q", got)
	}
	expect.Equal(t, source.Scope(), "git+"+s.URL+"/gw.git#site/north:devices/gw 07[*]", "scope")

	s.repository.commit(change{Branch: "site/north", Files: map[string]string{"devices/gw 07[*]/.gitkeep": ""}})
	expect.Equal(t, len(poll(t, source, m.ETag).Deployments), 0, "deployments")
}

// A device takes what its own folder has, and those of its groups.
func TestFoldersOfGroups(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	o := s.options(t)
	o.Path, o.Groups = "devices/gw-07", []string{"groups/all", "groups/line-2"}
	source := newSource(t, o)
	s.repository.commit(change{Files: map[string]string{
		"devices/gw-07/app.yaml": document(one, "1"), "groups/line-2/app.yaml": document(two, "1"), "groups/all/README": "none yet",
		"groups/line-3/app.yaml": document(one, "of another group"),
	}})
	m := poll(t, source, "")
	if got := get(t, source, m); len(got) != 2 || got[one] != document(one, "1") || got[two] != document(two, "1") {
		t.Errorf("documents are %q", got)
	}
	expect.Equal(t, source.Scope(), "git+"+s.URL+"/gw.git#main:devices/gw-07,groups/all,groups/line-2", "scope")
	s.repository.commit(change{Files: map[string]string{
		"devices/gw-07/app.yaml": document(one, "1"), "groups/all/app.yaml": document(one, "2"),
	}})
	if _, err := source.Manifest(t.Context(), m.ETag); err == nil || !strings.Contains(err.Error(), one) || !strings.Contains(err.Error(), "devices/gw-07/app.yaml") {
		t.Errorf("a deployment of two folders: %v", err)
	}
	o.Groups, o.Dir = []string{"groups/none"}, t.TempDir()
	expect.Equal(t, reason(expect.ErrorOf(newSource(t, o).Manifest(t.Context(), ""))), git.NoFolder, "a folder that was never there")
}

// No deployments are believed where somebody meant it: git has no empty folders, so that
// one goes with its last document. The rule is the same for a folder and the whole tree.
func TestDS27WhenNoDeploymentsAreBelieved(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"devices/gw-07", ""} {
		t.Run("folder "+folder, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			o := s.options(t)
			o.Path = folder
			source := newSource(t, o)
			in := func(name string) string { return strings.TrimPrefix(folder+"/"+name, "/") }
			s.repository.commit(change{Files: map[string]string{in("app.yaml"): document(one, "1"), "README.md": ""}})
			m := poll(t, source, "")
			expect.Require(t, len(m.Deployments) == 1, "manifest is %s", m.Raw)
			s.repository.commit(change{Files: map[string]string{}})
			expect.Equal(t, reason(expect.ErrorOf(source.Manifest(t.Context(), m.ETag))), git.NoFolder, "a tree without any file")
			s.repository.commit(change{Files: map[string]string{"README.md": "the last document is deleted"}})
			m = poll(t, source, m.ETag)
			expect.Equal(t, len(m.Deployments), 0, "deployments")
			s.repository.commit(change{Files: map[string]string{in("app.yaml"): document(one, "2"), "README.md": ""}})
			m = poll(t, source, m.ETag)
			expect.Equal(t, len(m.Deployments), 1, "deployments")
			s.repository.commit(change{Orphan: true, Files: map[string]string{"README.md": "another history"}})
			_, err := source.Manifest(t.Context(), m.ETag)
			if folder != "" && reason(err) != git.NoFolder || folder == "" && err != nil {
				t.Errorf("a folder that was never there: %v", err)
			}
		})
	}
}

func TestDS27LargeRepositories(t *testing.T) {
	s, o, source := begin(t)
	all := map[string]string{"big.bin": noise(3 << 20)}
	for i := range 2000 {
		all[fmt.Sprintf("docs/%d/%d.md", i%100, i)] = fmt.Sprint(i)
	}
	all["a.yaml"], all["b.yaml"] = document(one, "1"), document(two, "1")
	s.repository.commit(change{Files: all})
	m := poll(t, source, "")
	expect.Equal(t, len(m.Deployments), 2, "manifest is %s", m.Raw)
	get(t, source, m)

	// Only what is new comes over the line.
	before := sizeOf(t, o.Dir)
	all["b.yaml"] = document(two, "2")
	s.repository.commit(change{Files: all})
	get(t, source, poll(t, source, m.ETag))
	if grown := sizeOf(t, o.Dir) - before; grown > 64<<10 {
		t.Errorf("one changed document makes the work folder %d bytes larger", grown)
	}
}

func TestTheWorkFolderDoesNotGrow(t *testing.T) {
	s, o, source := begin(t)
	var old strings.Builder // so many commits that each that follows moves the boundary of what is fetched
	for i := range 31 {
		fmt.Fprintf(&old, "commit refs/heads/main\ncommitter A <a@b> %d +0000\ndata 1\nm\n", 1690000000+i)
	}
	s.repository.run(old.String(), "fast-import", "--quiet")
	for i := range 20 {
		s.repository.commit(change{Files: map[string]string{"a.yaml": document(one, fmt.Sprint(i)), "noise": noise(10 << 10)}})
		poll(t, source, "")
	}
	packs, err := filepath.Glob(filepath.Join(o.Dir, "repository/objects/pack/*.pack"))
	expect.True(t, err == nil && len(packs) <= 17, "%d packs, %v", len(packs), err)
	if size := sizeOf(t, o.Dir); size > 700<<10 {
		t.Errorf("the work folder has %d bytes", size)
	}
	shallow, err := os.ReadFile(filepath.Join(o.Dir, "repository/shallow"))
	if lines := bytes.Count(shallow, []byte("\n")); err != nil || lines > 20 {
		t.Errorf("%d commits are known to have no parents here, %v", lines, err)
	}
}

func TestDS27DamagedCopyIsMadeAnew(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(*testing.T, string){
		"packs are lost": func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "objects/pack"))
		},
		"a pack is cut off": func(t *testing.T, dir string) {
			each(t, filepath.Join(dir, "objects/pack/*.pack"), func(file string) error { return os.Truncate(file, 40) })
		},
		"a pack is full of zeros": func(t *testing.T, dir string) {
			each(t, filepath.Join(dir, "objects/pack/*.pack"), func(file string) error {
				info, err := os.Stat(file)
				if err != nil {
					return err
				}
				return os.WriteFile(file, make([]byte, info.Size()), 0o600)
			})
		},
		"the branch is empty": func(t *testing.T, dir string) { write(t, filepath.Join(dir, "refs/margolite/tip"), "") },
		"the branch is another": func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "refs/margolite/tip"), strings.Repeat("1", 40)+"\n")
		},
		"it is no repository": func(t *testing.T, dir string) { write(t, filepath.Join(dir, "HEAD"), "\x00\x00") },
		"its head is lost":    func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "HEAD")) },
		"its configuration is lost": func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "config"), "[core\x00")
		},
		"it is from the future": func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "config"), "[core]\nrepositoryformatversion = 9\nbare = true\n")
		},
		"its boundary is nonsense": func(t *testing.T, dir string) { write(t, filepath.Join(dir, "shallow"), "nonsense\n") },
		"locks are left": func(t *testing.T, dir string) {
			for _, name := range []string{"shallow.lock", "config.lock", "refs/margolite/tip.lock", "objects/pack/tmp_pack_x"} {
				write(t, filepath.Join(dir, name), "")
			}
		},
		"it is a file": func(t *testing.T, dir string) { remove(t, dir); write(t, dir, "") },
		"it is gone":   func(t *testing.T, dir string) { remove(t, filepath.Dir(dir)) },
	} {
		t.Run(name, func(t *testing.T) {
			s, o, source := begin(t)
			s.repository.commit(change{Files: files(document(one, name), document(two, name))})
			m := poll(t, source, "")
			copied := filepath.Join(o.Dir, "repository")

			damage(t, copied)
			expect.Equal(t, get(t, source, m)[two], document(two, name), "documents")
			damage(t, copied)
			again := newSource(t, o) // which knows nothing
			get(t, again, poll(t, again, ""))
			damage(t, copied)
			s.repository.commit(change{Files: files(document(one, name+"2"))})
			get(t, again, poll(t, again, m.ETag))
			left, _ := filepath.Glob(filepath.Join(copied, "objects/pack/tmp_*"))
			expect.Equal(t, len(left), 0, "left behind: %s", left)
		})
	}
	t.Run("while the branch moved on", func(t *testing.T) {
		s, o, source := begin(t)
		s.repository.commit(change{Files: files(document(one, "moved"))})
		m := poll(t, source, "")
		remove(t, filepath.Join(o.Dir, "repository"))
		s.repository.commit(change{Files: files(document(one, "on"))})
		err := source.Documents(t.Context(), m, m.Deployments, func(digest.Digest, []byte) error { return nil })
		expect.Error(t, err, wfm.ErrSuperseded, "documents")
		get(t, source, poll(t, source, ""))
	})
}

// A transfer that breaks off, or is broken, does no harm beyond itself.
func TestInterruptedFetch(t *testing.T) {
	t.Parallel()
	t.Run("a pack that is damaged on the way", func(t *testing.T) {
		s, _, source := begin(t)
		s.repository.commit(change{Files: files(document(one, "1"))})
		s.set(func(s *server) { s.broken = true })
		_, err := source.Manifest(t.Context(), "")
		if again, _ := wfm.Retry(err); reason(err) != git.Unreachable || !again {
			t.Errorf("poll: %v", err)
		}
		s.set(func(s *server) { s.broken = false })
		get(t, source, poll(t, source, ""))
	})
	const stops, silent, breaks = "the device stops", "the server goes silent", "the line breaks"
	for _, way := range []string{stops, silent, breaks} {
		t.Run(way, func(t *testing.T) {
			s, o, source := begin(t)
			s.repository.commit(change{Files: files(document(one, "1"))})
			m := poll(t, source, "")
			s.repository.commit(change{Files: files(document(one, "2"), noise(100<<10))})

			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			hold, held, ended := make(chan struct{}), make(chan struct{}), make(chan error)
			s.set(func(s *server) { s.hold, s.held = hold, held })
			impatient := o
			impatient.Timeout = time.Second
			start := func() {
				source := source
				if way == silent {
					source = newSource(t, impatient)
				}
				go func() {
					_, err := source.Manifest(ctx, m.ETag)
					ended <- err
				}()
			}
			start()
			for sending := false; !sending; {
				select {
				case <-held:
					sending = true
				case err := <-ended:
					expect.Require(t, way == silent, "poll: %v", err)
					impatient.Timeout *= 2 // a busy machine was slower than that before it came to the pack
					start()
				}
			}
			want := git.Unreachable
			switch way {
			case stops:
				stop()
				want = ""
			case breaks:
				close(hold)
			}
			if err := <-ended; reason(err) != want || way == stops && !errors.Is(err, context.Canceled) {
				t.Errorf("poll: %v", err)
			}
			if left := commandLines(t); strings.Contains(left, o.Dir) || strings.Contains(left, s.URL) {
				t.Errorf("still running: %s", left)
			}
			if left, _ := filepath.Glob(filepath.Join(o.Dir, "repository/objects/pack/tmp_*")); len(left) > 0 && way != stops {
				t.Errorf("left behind: %s", left)
			}
			s.set(func(s *server) { s.hold = nil })
			s.repository.commit(change{Files: files(document(one, "3"))})
			expect.Equal(t, get(t, source, poll(t, source, m.ETag))[one], document(one, "3"), "documents")
		})
	}
}

func TestDS28KeepEndsDocuments(t *testing.T) {
	s, _, source := begin(t)
	s.repository.commit(change{Files: files(document(one, "1"), document(two, "1"))})
	m := poll(t, source, "")
	full := errors.New("no room")
	calls := 0
	err := source.Documents(t.Context(), m, append(m.Deployments, m.Deployments...), func(digest.Digest, []byte) error {
		calls++
		return full
	})
	expect.True(t, errors.Is(err, full) && calls == 1, "%d calls, then %v", calls, err)
	m.Deployments[0].Digest = digest.FromString("other")
	err = source.Documents(t.Context(), m, m.Deployments[:1], func(digest.Digest, []byte) error { calls++; return nil })
	expect.True(t, errors.Is(err, wfm.ErrDigestMismatch) && calls == 1, "%d calls, then %v", calls, err)
	m.Deployments[0].URL = "https://wfm.example/document"
	expect.ErrorWith(t, source.Documents(t.Context(), m, m.Deployments[:1], nil), "", "a document of somebody else's")
}

func TestDS27SHA256Repository(t *testing.T) {
	s, _, source := begin(t, "--object-format=sha256")
	commit := s.repository.commit(change{Files: files(document(one, "1"))})
	if m := poll(t, source, ""); len(commit) != 64 || m.ETag != `"`+commit+`"` {
		t.Errorf("manifest of %s is %s", commit, m.ETag)
	} else {
		get(t, source, m)
	}
}

func TestDS27ManyDeployments(t *testing.T) {
	s, _, source := begin(t)
	all := map[string]string{}
	for i := range margo.MaxDeployments + 1 {
		all[fmt.Sprintf("%04d.yaml", i)] = document(fmt.Sprintf("%08x-8912-45f4-a523-372358765def", i), "1")
	}
	s.repository.commit(change{Files: all})
	refuses(t, s, source, fmt.Sprintf("more than %d deployments", margo.MaxDeployments))
	delete(all, "0000.yaml")
	s.repository.commit(change{Files: all})
	m := poll(t, source, "")
	expect.Equal(t, len(get(t, source, m)), margo.MaxDeployments, "documents")
}

func TestOptions(t *testing.T) {
	for name, change := range map[string]func(*git.Options){
		"another protocol":       func(o *git.Options) { o.URL = "http://git.example/gw.git" },
		"ssh":                    func(o *git.Options) { o.URL = "git@git.example:gw.git" },
		"a command":              func(o *git.Options) { o.URL = "ext::sh -c x" },
		"no host":                func(o *git.Options) { o.URL = "https:///gw.git" },
		"a password in the URL":  func(o *git.Options) { o.URL = "https://a:secret@git.example/gw.git" },
		"a malformed password":   func(o *git.Options) { o.URL = "https://a:secret%zz@git.example/gw.git" },
		"a query":                func(o *git.Options) { o.URL = "https://git.example/gw.git?a=b" },
		"no work folder":         func(o *git.Options) { o.Dir = "" },
		"a group without a path": func(o *git.Options) { o.Groups = []string{"groups/a"} },
		"a group of the device":  func(o *git.Options) { o.Path, o.Groups = "a", []string{"a/b"} },
		"a group twice":          func(o *git.Options) { o.Path, o.Groups = "a", []string{"b", "/b/"} },
		"a group outside":        func(o *git.Options) { o.Path, o.Groups = "a", []string{"../b"} },
	} {
		t.Run(name, func(t *testing.T) {
			o := git.Options{URL: "git+https://git.example/gw.git", Dir: t.TempDir()}
			expect.Value(git.New(o))(t)
			change(&o)
			if _, err := git.New(o); err == nil || strings.Contains(err.Error(), "secret") {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestGitThatCannotBeUsed(t *testing.T) {
	for name, tt := range map[string]struct {
		script string // what the program does; empty: there is none
		want   git.Reason
	}{
		"missing":     {"", git.NoProgram},
		"too old":     {"echo git version 2.30.2", git.TooOld},
		"far too old": {"echo git version 1.99.2", git.TooOld},
		"something":   {"echo hello", git.TooOld},
		"broken":      {"exit 1", git.NoProgram},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir)
			if tt.script != "" {
				write(t, filepath.Join(dir, "git"), "#!/bin/sh\n"+tt.script+"\n")
				each(t, filepath.Join(dir, "git"), func(file string) error { return os.Chmod(file, 0o700) })
			}
			source := newSource(t, git.Options{URL: "https://127.0.0.1:1/gw.git", Dir: t.TempDir()})
			_, err := source.Manifest(t.Context(), "")
			if known, ok := errors.AsType[*git.Error](err); !ok || known.Reason != tt.want || known.Mend() == "" || known.Answered() {
				t.Errorf("poll: %v, want %s", err, tt.want)
			}
		})
	}
}

// A server may want to see a certificate of the device.
func TestAUTH12AServerThatWantsACertificate(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.repository.commit(change{Files: files(document(one, "1"))})
	front := httptest.NewUnstartedServer(s)
	front.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	front.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	front.StartTLS()
	t.Cleanup(front.Close)
	authority := expect.Value(pki.NewServerAuthority("Plant", time.Now()))(t)
	device := expect.Value(authority.IssueSigner("gw-07"))(t)
	key := expect.Value(device.KeyPEM())(t)
	o := s.options(t)
	o.URL = "git+" + front.URL + "/gw.git"
	o.Dir = filepath.Join(t.TempDir(), "shows-none")
	expect.ErrorWith(t, expect.ErrorOf(newSource(t, o).Manifest(t.Context(), "")), "", "a device without a certificate")
	dir := t.TempDir()
	o.Certificate, o.Key, o.Dir = filepath.Join(dir, "device.pem"), filepath.Join(dir, "device.key"), filepath.Join(dir, "git")
	check(t, errors.Join(os.WriteFile(o.Certificate, device.CertificatePEM(), 0o644), os.WriteFile(o.Key, key, 0o600)))
	expect.Equal(t, len(poll(t, newSource(t, o), "").Deployments), 1, "deployments")
}
