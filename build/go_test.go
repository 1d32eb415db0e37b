package build_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// The go command of PATH is taken if it is new enough, else that of go.mod.
func TestGoIsNewEnough(t *testing.T) {
	for version, taken := range map[string]bool{
		"go1.99.1":                 true,
		"go1.99.2":                 true,
		"go1.99.10":                true,
		"go1.100":                  true,
		"go1.100rc1":               true,
		"go2.0.0":                  true,
		"go1.99.1 X:nodwarf5":      true,
		"go1.99.1-custom":          true,
		"devel go1.100-0123abcdef": true,
		"go1.99.0":                 false,
		"go1.99rc2":                false,
		"go1.99":                   false,
		"go1.9.9":                  false,
		"go1.19.8":                 false,
		"":                         false, // it fails
	} {
		t.Run(version, func(t *testing.T) {
			b := newBare(t, version)
			want := "fetched env GOFLAGS\n"
			if taken {
				want = "found env GOFLAGS\n"
			}
			if out, err := b.run("env", "GOFLAGS"); err != nil || out != want {
				t.Errorf("%q, %v, want %q", out, err, want)
			}
			expect.Equal(t, b.requests.Load() > 0, !taken, "it asked the proxy")
		})
	}
}

// Runs at the same time fetch it once, and none sees a part of it. What a run that
// was killed left is no hindrance.
func TestGoIsFetchedOnce(t *testing.T) {
	b := newBare(t, "")
	check(t, os.MkdirAll(b.cached()+".part/golang.org", 0o755))
	var runs sync.WaitGroup
	for range 4 {
		runs.Go(func() {
			if out, err := b.run("version"); err != nil || out != "fetched version\n" {
				t.Errorf("%q, %v", out, err)
			}
		})
	}
	runs.Wait()
	expect.Equal(t, b.requests.Load(), 1, "times that it was fetched")
	expect.OK(t, expect.ErrorOf(os.Stat(filepath.Join(b.cached(), "src/go.mod")))) // the standard library is a module
	expect.True(t, expect.ErrorOf(os.Stat(b.cached()+".part")) != nil, "a part of it is left")
}

func TestGoIsFetchedFromTheFirstProxy(t *testing.T) {
	for proxies, want := range map[string]string{
		"PROXY":                            "fetched",
		"PROXY/":                           "fetched",
		"PROXY/moved,direct":               "fetched",
		"direct,PROXY|http://127.0.0.1:9/": "fetched",
		"off":                              "GOPROXY (off) names no module proxy",
		"direct":                           "GOPROXY (direct) names no module proxy",
		"PROXY/none":                       "cannot fetch Go 1.99.1; install Go 1.99.1 or newer",
	} {
		t.Run(proxies, func(t *testing.T) {
			b := newBare(t, "go1.98.3")
			b.proxies = strings.ReplaceAll(proxies, "PROXY", b.proxies)
			out, err := b.run("version")
			expect.True(t, strings.Contains(out, want) && (err == nil) == (want == "fetched"), "%q, %v, want %q", out, err, want)
		})
	}
}

// What is not of the known content is neither run nor kept, and not even unpacked.
func TestGoOfAnotherChecksumIsRefused(t *testing.T) {
	for name, sum := range map[string]string{
		"wrong checksum": strings.Repeat("0", 64) + "  NAME.zip\n",
		"no checksum":    strings.Repeat("0", 64) + "  v0.0.1-go1.99.0.linux-amd64.zip\n",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBare(t, "")
			b.write("build/go.sums", strings.ReplaceAll(sum, "NAME", b.module), 0o644)
			out, err := b.run("version")
			expect.True(t, err != nil && !strings.Contains(out, "fetched") && strings.Contains(out, "build/go.sums"), "%q, %v", out, err)
			if left, _ := filepath.Glob(b.cached() + "*"); len(left) > 0 {
				t.Errorf("%v are left", left)
			}
		})
	}
}

// A new version in go.mod needs new checksums: build/README.md says how.
func TestGoHasChecksums(t *testing.T) {
	gomod := expect.Value(os.ReadFile("../go.mod"))(t)
	sums := expect.Value(os.ReadFile("go.sums"))(t)
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(gomod)
	for _, arch := range []string{"amd64", "arm64"} {
		line := fmt.Sprintf(`(?m)^[0-9a-f]{64}  v0\.0\.1-go%s\.linux-%s\.zip$`, regexp.QuoteMeta(string(version[1])), arch)
		if !regexp.MustCompile(line).Match(sums) {
			t.Errorf("go.sums has no Go %s for linux-%s", version[1], arch)
		}
	}
}

// bare is a machine with another go command or none, and a work tree that asks for
// Go 1.99.1. Its module proxy has that.
type bare struct {
	t        *testing.T
	dir      string
	module   string // version of golang.org/toolchain for this machine
	proxies  string
	requests atomic.Int32
}

func newBare(t *testing.T, version string) *bare {
	t.Helper()
	script := expect.Value(os.ReadFile("go"))(t)
	arch := goEnv(t, "GOHOSTARCH")
	b := &bare{t: t, dir: t.TempDir(), module: "v0.0.1-go1.99.1.linux-" + arch}
	path := "/golang.org/toolchain/@v/" + b.module + ".zip"
	content := b.toolchain()
	proxy := http.NewServeMux()
	proxy.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
		b.requests.Add(1)
		w.Write(content)
	})
	proxy.Handle("/moved/", http.RedirectHandler(path, http.StatusFound))
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	b.proxies = server.URL

	b.write("go.mod", "module example.com/bare\n\ngo 1.99.1 // the least\n", 0o644)
	b.write("build/go", string(script), 0o755)
	b.write("build/go.sums", fmt.Sprintf("%x  %s.zip\n", sha256.Sum256(content), b.module), 0o644)
	b.write("build/need", "#!/bin/sh\n", 0o755)
	found := "#!/bin/sh\nexit 127\n"
	if version != "" {
		found = "#!/bin/sh\n[ \"$*\" = 'env GOVERSION' ] && echo '" + version + "' || echo found \"$@\"\n"
	}
	b.write("path/go", found, 0o755)
	return b
}

// toolchain is that module: Go as a script, whose archive has no modes.
func (b *bare) toolchain() []byte {
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for name, content := range map[string]string{
		"bin/go":                 "#!/bin/sh\n[ \"$GOTOOLCHAIN\" = local ] && [ \"$(command -v go)\" = \"$GOROOT/bin/go\" ] && \"$GOROOT/pkg/tool/linux/compile\" && echo fetched \"$@\"\n",
		"pkg/tool/linux/compile": "#!/bin/sh\n",
		"src/_go.mod":            "module std\n",
	} {
		f, err := w.Create("golang.org/toolchain@" + b.module + "/" + name)
		if err == nil {
			_, err = f.Write([]byte(content))
		}
		check(b.t, err)
	}
	check(b.t, w.Close())
	return archive.Bytes()
}

func (b *bare) cached() string { return filepath.Join(b.dir, "cache/margolite/go-1.99.1") }

func (b *bare) write(name, content string, mode os.FileMode) {
	b.t.Helper()
	file := filepath.Join(b.dir, name)
	check(b.t, os.MkdirAll(filepath.Dir(file), 0o755))
	check(b.t, os.WriteFile(file, []byte(content), mode))
}

// run runs build/go and returns what it printed; where it fails, also its errors.
func (b *bare) run(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(b.dir, "build/go"), args...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(b.dir, "path")+":"+os.Getenv("PATH"),
		"XDG_CACHE_HOME="+filepath.Join(b.dir, "cache"), "GOPROXY="+b.proxies, "GOROOT=/nonexistent", "GOTOOLCHAIN=auto", "no_proxy=*")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		return stdout.String() + stderr.String(), err
	}
	return stdout.String(), nil
}

var check = expect.Check
