package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// groupEnv names the control group for this shim. The agent sets it in the container of an engine:
// whatever remains in a container's control group is killed when the container ends.
const groupEnv = "MARGOLITE_SHIM_CGROUP"

// enterGroup moves this process and its future children into a control group of every hierarchy
// mounted below root. It creates the group if necessary.
func enterGroup(root, group string) error {
	trees := []string{root}
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); errors.Is(err, fs.ErrNotExist) { // not purely cgroup v2
		found, err := filepath.Glob(filepath.Join(root, "*", "cgroup.procs"))
		if err != nil {
			return err
		}
		trees = nil
		for _, file := range found {
			trees = append(trees, filepath.Dir(file))
		}
	}
	for _, tree := range trees {
		dir := filepath.Join(tree, group)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cannot make control group: %w", err)
		}
		if err := inheritSet(tree, dir); err != nil {
			return fmt.Errorf("cannot prepare control group %s: %w", dir, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil { // 0 is this process
			return fmt.Errorf("cannot enter control group: %w", err)
		}
	}
	return nil
}

// inheritSet copies the processors and memory nodes of the parent to a new cgroup v1 group, which
// could hold no process without them.
func inheritSet(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		set, err := os.ReadFile(filepath.Join(dir, file))
		if err == nil && len(bytes.TrimSpace(set)) == 0 {
			if set, err = os.ReadFile(filepath.Join(parent, file)); err == nil {
				err = os.WriteFile(filepath.Join(dir, file), set, 0)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the root of cgroup v2 has none
			return err
		}
	}
	return nil
}
