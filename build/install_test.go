package build_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gomodule "golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/margolite/margolite/test/expect"
)

// A program installed with `go install` knows its version and finds the shim beside
// it. Without a shim, it says how to get one.
func TestGoInstallOfAVersion(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: builds without a cache")
	}
	version := gomodule.Version{Path: module, Version: fmt.Sprintf("v0.0.0-test.%d", time.Now().Unix())}
	goproxy, cache := goEnv(t, "GOPROXY"), goEnv(t, "GOMODCACHE")
	proxy := moduleProxy(t, version)
	t.Cleanup(func() { // remove this test's module from the shared cache
		os.RemoveAll(filepath.Join(cache, module+"@"+version.Version))
		left, _ := filepath.Glob(filepath.Join(cache, "cache/download", module, "@v", version.Version+".*"))
		for _, file := range left {
			os.Remove(file)
		}
	})

	bin := t.TempDir()
	cmd := exec.Command("go", "install", module+"/cmd/margolite@"+version.Version, module+"/cmd/containerd-shim-runc-v2@"+version.Version)
	cmd.Dir = t.TempDir() // in no module
	cmd.Env = append(os.Environ(),
		"GOBIN="+bin, "GOPATH="+t.TempDir(), "GOMODCACHE="+cache, "GOFLAGS=-mod=mod -modcacherw", "GOWORK=off",
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(cache, "cache/download")+","+goproxy,
		"GOPRIVATE=", "GONOPROXY=", "GONOSUMDB=*")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	check(t, os.WriteFile(config, fmt.Appendf(nil, "state: {dir: %[1]s/state, run: %[1]s/run}\n", dir), 0o600))
	old := "#!/bin/sh\necho 'Version: 1.6.20~ds1'\n"
	check(t, os.WriteFile(filepath.Join(dir, "containerd-shim-runc-v2"), []byte(old), 0o755))
	run := func(args ...string) string {
		program := exec.Command(filepath.Join(bin, "margolite"), args...)
		program.Env = []string{"PATH=" + dir} // with no other shim than one that is too old
		out, _ := program.CombinedOutput()    // check fails: there is no WFM
		return string(out)
	}
	expect.Contains(t, run("version"), "margolite "+version.Version+",", "its version")
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if out := run("check", "--config", config); strings.Contains(out, " shim: ") {
		t.Errorf("the shim beside it is not found:\n%s", out)
	}
	check(t, os.Remove(filepath.Join(bin, "containerd-shim-runc-v2")))
	const advice = "go install " + module + "/cmd/containerd-shim-runc-v2@"
	out := run("check", "--config", config)
	for _, want := range []string{"containerd-shim-runc-v2, containerd 1.6.20~ds1)", advice + version.Version} {
		expect.True(t, strings.Contains(out, want), "want %q in\n%s", want, out)
	}
}

// moduleProxy makes a module proxy of files that has one version of this module:
// the files of the work tree that git knows.
func moduleProxy(t *testing.T, version gomodule.Version) (dir string) {
	t.Helper()
	list := exec.Command("git", "ls-files", "-z", "-co", "--exclude-standard")
	list.Dir = ".."
	names, err := list.Output()
	if err != nil {
		t.Skip("needs a work tree of git:", err)
	}
	var files []zip.File
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if _, err := os.Lstat(filepath.Join("..", name)); err == nil { // else it is deleted
			files = append(files, tracked(name))
		}
	}
	dir = t.TempDir()
	versions := filepath.Join(dir, module, "@v")
	check(t, os.MkdirAll(versions, 0o755))
	archive := expect.Value(os.Create(filepath.Join(versions, version.Version+".zip")))(t)
	defer archive.Close()
	check(t, zip.Create(archive, version, files))
	gomod := expect.Value(os.ReadFile("../go.mod"))(t)
	for name, content := range map[string][]byte{
		"list": []byte(version.Version), version.Version + ".mod": gomod,
		version.Version + ".info": fmt.Appendf(nil, `{"Version": %q}`, version.Version),
	} {
		check(t, os.WriteFile(filepath.Join(versions, name), content, 0o644))
	}
	return dir
}

// tracked is a file of the work tree, by its path from the top.
type tracked string

func (f tracked) Path() string                 { return string(f) }
func (f tracked) Lstat() (os.FileInfo, error)  { return os.Lstat(filepath.Join("..", string(f))) }
func (f tracked) Open() (io.ReadCloser, error) { return os.Open(filepath.Join("..", string(f))) }

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out := expect.Value(exec.Command("go", "env", name).Output())(t)
	return strings.TrimSpace(string(out))
}
