package embedded_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime/embedded"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
)

// Only a shim that can be started is found: beside the program first, then anywhere on PATH.
func TestFindShimPassesOverThoseThatAreTooOld(t *testing.T) {
	self := expect.Value(os.Executable())(t)
	ours := "#!/bin/sh\nexec " + containerdtest.Shim(t) + " $*\n"
	beside, first, second := filepath.Dir(self), t.TempDir(), t.TempDir()
	t.Setenv("PATH", strings.Join([]string{"relative", first, first, second}, ":"))
	put := func(dir, script string) string {
		t.Helper()
		path := filepath.Join(dir, "containerd-shim-runc-v2")
		check(t, os.WriteFile(path, []byte(script), 0o755))
		t.Cleanup(func() { os.Remove(path) })
		return path
	}
	of := func(version, revision string) string {
		return "#!/bin/sh\n[ \"$*\" = -v ] && printf 'shim:\\n  Version:  " + version + "\\n  Revision: " + revision + "\\n  Go version: go1\\n\\n'\n"
	}

	// What is no shim that can be used, and what is said of it.
	for script, want := range map[string]string{
		of("1.6.20~ds1", "1.6.20~ds1-1"): ", containerd 1.6.20~ds1",
		of("v2.2.9", "margolite"):        ", containerd v2.2.9",
		of("unknown", "abc"):             ", containerd unknown",
		"#!/bin/sh\necho usage":          ", containerd of unknown version",
		"#!/bin/sh\nexit 3":              ", which does not report its version: exit status 3",
		"#!/bin/sh\nexec /usr/bin/yes":   ", which does not report its version: signal: broken pipe",
		"#!/nowhere":                     ", which does not run: ",
	} {
		path := put(first, script)
		_, err := embedded.FindShim(t.Context())
		if err == nil || !strings.Contains(err.Error(), "no containerd-shim-runc-v2 of version 2.3 or later beside "+self) ||
			strings.Count(err.Error(), path+",") != 1 || !strings.Contains(err.Error(), "rejected: "+path+want) {
			t.Errorf("%q: %v", script, err)
		}
	}

	steps := []struct {
		dir, script string
		want        bool // to be found
		own         bool
	}{
		{second, of("2.3.0-rc.1", "abc"), true, false},
		{beside, of("1.7.2", "abc"), false, false},
		{first, of("v10.0.1", "abc"), true, false},
		{beside, ours, true, true},
	}
	found := embedded.Shim{}
	for _, step := range steps {
		path := put(step.dir, step.script)
		if step.want {
			found = embedded.Shim{Path: path, Own: step.own}
		}
		expect.Equal(t, expect.Value(embedded.FindShim(t.Context()))(t), found, "found with %s", path)
	}
}

func TestFindShimWaitsForNoAnswerForever(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	check(t, os.WriteFile(filepath.Join(dir, "containerd-shim-runc-v2"), []byte("#!/bin/sh\nexec /bin/sleep 1000"), 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	expect.ErrorWith(t, expect.ErrorOf(embedded.FindShim(ctx)), context.DeadlineExceeded.Error(), "a shim that says nothing")
}

func TestFindInitIsBesideTheProgram(t *testing.T) {
	if got := embedded.FindInit(); got != "" {
		t.Skipf("needs a machine without %s", got)
	}
	self := expect.Value(os.Executable())(t)
	beside := filepath.Join(filepath.Dir(self), "margolite-init")
	check(t, os.WriteFile(beside, nil, 0o644))
	defer os.Remove(beside)
	expect.Equal(t, embedded.FindInit(), "", "a file that is no program")
	check(t, os.Chmod(beside, 0o755))
	expect.Equal(t, embedded.FindInit(), beside, "beside the program")
}
