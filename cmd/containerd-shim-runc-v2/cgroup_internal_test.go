package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// tree makes files below a directory that stands in for /sys/fs/cgroup.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		check(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return root
}

func TestTheShimEntersItsGroupInEveryHierarchy(t *testing.T) {
	for name, c := range map[string]struct{ files, want map[string]string }{
		"cgroup v2": {
			files: map[string]string{"cgroup.procs": "", "system.slice/cgroup.procs": ""},
			want:  map[string]string{"shims/cgroup.procs": "0"},
		},
		"cgroup v1, a v2 tree beside it": {
			files: map[string]string{"memory/cgroup.procs": "", "systemd/cgroup.procs": "", "unified/cgroup.procs": ""},
			want:  map[string]string{"memory/shims/cgroup.procs": "0", "systemd/shims/cgroup.procs": "0", "unified/shims/cgroup.procs": "0"},
		},
		"processors and memory nodes of a new group of v1": {
			files: map[string]string{
				"cpuset/cgroup.procs": "", "cpuset/cpuset.cpus": "0-3\n", "cpuset/cpuset.mems": "0\n",
				"cpuset/shims/cpuset.cpus": "\n", "cpuset/shims/cpuset.mems": "",
			},
			want: map[string]string{"cpuset/shims/cpuset.cpus": "0-3\n", "cpuset/shims/cpuset.mems": "0\n", "cpuset/shims/cgroup.procs": "0"},
		},
		"processors that somebody has chosen": {
			files: map[string]string{"cpuset/cgroup.procs": "", "cpuset/cpuset.cpus": "0-3\n", "cpuset/shims/cpuset.cpus": "1\n"},
			want:  map[string]string{"cpuset/shims/cpuset.cpus": "1\n", "cpuset/shims/cgroup.procs": "0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, c.files)
			check(t, enterGroup(root, "/shims"))
			for file, want := range c.want {
				expect.Equal(t, string(expect.Value(os.ReadFile(filepath.Join(root, file)))(t)), want, "%s", file)
			}
			made := expect.Value(fs.Glob(os.DirFS(root), "*/shims"))(t)
			if _, err := os.Stat(filepath.Join(root, "shims")); err == nil {
				made = append(made, "shims")
			}
			for _, dir := range made {
				if _, ok := c.want[filepath.Join(dir, "cgroup.procs")]; !ok {
					t.Errorf("there is a group %s", dir)
				}
			}
		})
	}
}

var check = expect.Check
