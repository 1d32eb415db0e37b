package embedded

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
)

// about is the problem with an object that a check tells of with such words, the zero one if there is none.
func about(object, words string, look func(*problems)) (found Problem) {
	var all problems
	look(&all)
	for _, p := range all {
		if p.Object == object && strings.Contains(p.Text, words) {
			found = p
		}
	}
	return found
}

func TestCheckReadsTheCgroupsOfTheKernel(t *testing.T) {
	for name, test := range map[string]struct {
		files []string // below the root; "path=content"
		want  string   // in the problem's text; "" for none
		fatal bool
	}{
		"unified with all controllers":      {[]string{"sys/fs/cgroup/cgroup.controllers=cpuset cpu io memory pids\n"}, "", false},
		"unified on a board without memory": {[]string{"sys/fs/cgroup/cgroup.controllers=cpuset cpu io pids\n"}, "for memory", false},
		"one hierarchy per controller": {[]string{
			"sys/fs/cgroup/cpu/tasks=", "sys/fs/cgroup/memory/tasks=", "sys/fs/cgroup/pids/tasks=",
			"sys/fs/cgroup/devices/tasks=", "sys/fs/cgroup/freezer/tasks=",
		}, "", false},
		"without devices": {[]string{
			"sys/fs/cgroup/cpu/tasks=", "sys/fs/cgroup/memory/tasks=", "sys/fs/cgroup/pids/tasks=", "sys/fs/cgroup/freezer/tasks=",
		}, "devices", true},
		"nothing mounted": {nil, "devices, freezer", true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for _, file := range test.files {
				path, content, _ := strings.Cut(file, "=")
				path = filepath.Join(root, path)
				check(t, os.MkdirAll(filepath.Dir(path), 0o755))
				check(t, os.WriteFile(path, []byte(content), 0o600))
			}
			got := about("cgroups", test.want, func(p *problems) { p.kernel(root) })
			expect.True(t, (got.Text != "") == (test.want != "") && got.Fatal == test.fatal, "got %+v, want %q", got, test.want)
		})
	}
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	empty := t.TempDir()
	t.Setenv("PATH", empty)
	found := map[string]bool{}
	for _, p := range Check(t.Context(), t.TempDir()) {
		expect.True(t, p.Text != "" && p.Mend != "", "incomplete: %+v", p)
		found[p.Object] = p.Fatal
	}
	for _, object := range []string{"runc", "shim"} {
		expect.Equal(t, found[object], true, "%s was found missing: %v", object, found)
	}
	kernel := func(p *problems) { p.kernel(empty) }
	expect.Equal(t, about("kernel", "namespaces", kernel).Fatal, true, "namespaces are required")
	for what, p := range map[string]Problem{
		"seccomp": about("kernel", "system calls", kernel),
		"medium":  about("root", "in memory", func(p *problems) { p.storage("/dev/shm") }),
	} {
		expect.True(t, p.Text != "" && !p.Fatal, "%s: %+v", what, p)
	}
}

func TestCheckTellsOfDamageUntilItIsRemoved(t *testing.T) {
	root := t.TempDir()
	kept := filepath.Join(root, "io.containerd.metadata.v1.bolt", "meta.db.bad")
	damage := func() Problem { return about("root", kept, func(p *problems) { p.storage(root) }) }
	expect.Equal(t, damage(), Problem{}, "damage")
	check(t, errors.Join(os.Mkdir(filepath.Dir(kept), 0o700), os.WriteFile(kept, nil, 0o600)))
	if p := damage(); p.Text == "" || p.Fatal {
		t.Errorf("damage: %+v", p)
	}
}

func TestCheckTellsAnOldRuncFromANewOne(t *testing.T) {
	for version, bad := range map[string]bool{"1.1.5+ds1": false, "1.4.0": false, "1.0.0-rc93": true, "0.1.1": true} {
		dir := t.TempDir()
		script := "#!/bin/sh\necho 'runc version " + version + "'\necho 'spec: 1.0.2'\n"
		check(t, os.WriteFile(filepath.Join(dir, "runc"), []byte(script), 0o755))
		t.Setenv("PATH", dir+":/bin")
		expect.Equal(t, checkRunc(t.Context()) != "", bad, "a problem with runc %s", version)
	}
}

func TestOverlayIsTriedAndLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	root := filepath.Join("/dev/shm", "margolite-overlay-"+rand.Text()) // overlays do not go on each other
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	killed := filepath.Join(root, trial+"1", "merged") // is what a trial leaves that was killed
	check(t, os.MkdirAll(killed, 0o755))
	check(t, unix.Mount("tmpfs", killed, "tmpfs", 0, ""))
	expect.Error(t, canOverlay(root), nil, "not in %s", root)
	expect.Equal(t, len(expect.Value(os.ReadDir(root))(t)), 0, "entries that it left")
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), root) {
		t.Errorf("something is mounted in %s still (%v)", root, err)
	}
	for _, c := range reserved {
		p := about("overlayfs", "does not support: "+string(c), func(p *problems) { p.storage(filepath.Join(t.TempDir(), "a"+string(c)+"b")) })
		expect.Equal(t, p.Mend, "choose a state.dir without that character", "what to do about a path with %c", c)
	}
	expect.ErrorWith(t, canOverlay("/proc/self/fd"), "", "overlayfs in /proc")
}
