package container_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
)

// runc init reads /etc/passwd and /etc/group of the root file system before it starts the process, and waits forever for
// the writer of a FIFO. Whoever cancels such a start does not wait for it, and nothing of it stays.
func TestAStartThatBlocksCanBeCancelled(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		for file, parent := range map[string]string{"passwd": "", "group": cgroupParent} {
			id := d.blocking(file, parent)
			ctx, cancel := context.WithCancel(d.ctx())
			ended := make(chan error, 1)
			go func() { ended <- d.Start(ctx, id) }()
			expect.Eventually(d, "runc init waits for /etc/"+file, func() bool { return len(runcOf(d, id)) > 0 && len(inits()) > 0 })

			neighbour := d.config("neighbour", "")
			neighbour.Labels.Project = "other"
			other := d.up(neighbour) // nobody waits for it
			d.sh(other, "true")
			d.delete(other)
			expect.OK(t, d.RemoveProject(d.ctx(), "other"))

			cancel()
			expect.ErrorWith(t, expect.Receive(t, "the start that was cancelled ends", ended), "", "the start")
			d.expectNothingOf(id)
			expect.OK(t, expect.Answer(t, "it is removed", func() error { return d.Delete(d.ctx(), id) }))
		}
	})
}

// A start that takes no processor time ends by itself, long before the limit of starts, and can be repeated.
func TestAStartThatBlocksFails(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: long waits")
	}
	onEach(t, func(t *testing.T, d *device) {
		id := d.blocking("passwd", "")
		for range 2 {
			if err := d.Start(d.ctx(), id); !errors.Is(err, container.ErrBlocked) { // that of the limit is another one
				t.Errorf("the error is %v", err)
			}
			d.expectNothingOf(id)
		}
	})
}

// cgroupParent is a control group of somebody else, below which a container has its own.
const cgroupParent = "/margolite-test-blocked"

// blocking is a stopped container with a FIFO in the place of a file of /etc, which blocks its start.
func (d *device) blocking(file, parent string) (id string) {
	d.Helper()
	config := d.config("blocking-"+file, fmt.Sprintf("mkdir -p /etc; rm -f /etc/%s; mkfifo /etc/%s; sleep 1000", file, file))
	if config.Service.Resources.CgroupParent = parent; parent != "" {
		d.Cleanup(func() { // it is empty by then, and nobody else removes it
			for _, root := range cgroupRoots() {
				_ = os.Remove(filepath.Join(root, parent))
			}
		})
	}
	id = d.up(config)
	path := fmt.Sprintf("/proc/%d/root/etc/%s", d.find(id).Pid, file)
	expect.Eventually(d, file+" is a FIFO", func() bool {
		info, err := os.Lstat(path)
		return err == nil && info.Mode()&os.ModeNamedPipe != 0
	})
	d.stop(id)
	return id
}

// expectNothingOf waits until there is nothing of the task of a container: processes, control group, bundle, runc's state.
func (d *device) expectNothingOf(id string) {
	d.Helper()
	var left []string
	expect.Eventually(d, "nothing of the task is left", func() bool {
		left = runcOf(d, id)
		patterns := []string{filepath.Join(d.run, "runc", "*", id)}
		for _, root := range cgroupRoots() {
			patterns = append(patterns, filepath.Join(root, containerdtest.Namespace, "*", id), filepath.Join(root, cgroupParent, id))
		}
		for _, pattern := range patterns {
			found, _ := filepath.Glob(pattern)
			left = append(left, found...)
		}
		if len(left) > 0 {
			d.Logf("left: %q", left)
		}
		return len(left) == 0
	})
}

// cgroupRoots are the hierarchies of control groups: that of version 2, or one per controller.
func cgroupRoots() []string {
	perController, _ := filepath.Glob("/sys/fs/cgroup/*")
	return append(perController, "/sys/fs/cgroup")
}

// runcOf are the command lines of runc and of shims that have the id of a container in them.
func runcOf(d *device, id string) (found []string) {
	for _, line := range commandLines() {
		if bytes.Contains(line, []byte(id)) {
			found = append(found, string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
		}
	}
	return found
}

// inits are the processes that runc has started in containers and that are no others yet.
func inits() (found []string) {
	for _, line := range commandLines() {
		if bytes.Equal(line, []byte("runc\x00init\x00")) {
			found = append(found, string(line))
		}
	}
	return found
}

func commandLines() (lines [][]byte) {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		if line, _ := os.ReadFile(path); len(line) > 0 {
			lines = append(lines, line)
		}
	}
	return lines
}
