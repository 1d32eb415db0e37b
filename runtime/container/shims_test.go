package container_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/test/expect"
)

// A stopped shim must not hide the containers of others, and its own are known not to respond until it goes on.
func TestAStoppedShimFailsNoList(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		d.shimGrace = 2 * time.Second // it is asked again more often, and nobody kills it
		d.restart()
		stopped := d.up(d.config("stopped", ""))
		neighbour := d.config("neighbour", "")
		neighbour.Labels.Project = "other"
		other := d.up(neighbour)
		defer func() {
			d.delete(other)
			expect.OK(t, d.RemoveProject(d.ctx(), "other"))
		}()
		pid := d.find(stopped).Pid
		resume := d.stopShim(pid)
		defer resume()

		expect.Eventually(d, "its shim is known not to respond", func() bool { return d.find(stopped).State == container.Unresponsive })
		for range 3 {
			if found := d.find(stopped); found.State != container.Unresponsive || found.Pid != pid {
				t.Errorf("the container of the stopped shim is %s with process %d, want %s with %d", found.State, found.Pid, container.Unresponsive, pid)
			}
			expect.Equal(t, d.find(other).State, container.Running, "its neighbour")
		}
		list, err := d.ListProject(d.ctx(), "other")
		if err != nil || len(list) != 1 || list[0].ID != other || list[0].State != container.Running {
			t.Errorf("the other project has %v, %v", list, err)
		}

		resume()
		expect.Eventually(d, "its shim responds again", func() bool { return d.find(stopped).State == container.Running })
	})
}

// A shim that stays silent is killed after its grace time, and its containers can be started again.
func TestAStoppedShimIsKilled(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		d.shimGrace = 2 * time.Second
		d.restart()
		ids := []string{d.up(d.config("web", "")), d.up(d.config("db", ""))}
		pid := d.find(ids[0]).Pid
		shim := parent(t, pid)
		d.stopShim(pid)

		ctx, cancel := context.WithCancel(d.ctx())
		var watching sync.WaitGroup
		defer watching.Wait()
		defer cancel()
		watching.Go(func() {
			expect.OK(t, d.WatchShims(ctx, func(string) {}))
		})
		expect.Eventually(d, "both containers have ended", func() bool {
			return d.find(ids[0]).State == container.Created && d.find(ids[1]).State == container.Created
		})
		expect.Eventually(d, "their shim is gone", func() bool { return errors.Is(unix.Kill(shim, 0), unix.ESRCH) })
		expect.Eventually(d, "their processes are gone", func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
		for _, id := range ids {
			d.start(id)
			expect.Equal(t, d.find(id).State, container.Running, "after its start a container")
		}
	})
}

// Who changes a container does not wait longer than the grace time for its shim.
func TestAContainerWithAStoppedShimCanBeChanged(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: long waits")
	}
	onEach(t, func(t *testing.T, d *device) {
		d.shimGrace = 2 * time.Second
		d.restart()
		for name, change := range map[string]func(id string){
			"stopped": d.stop,
			"deleted": d.delete,
			"joined": func(id string) {
				d.find(id) // as everybody does who starts another one
				d.up(d.config("second", ""))
			},
		} {
			id := d.up(d.config(name, ""))
			pid := d.find(id).Pid
			shim := parent(t, pid)
			d.stopShim(pid)
			change(id)
			expect.Eventually(d, name+": its shim is gone", func() bool { return errors.Is(unix.Kill(shim, 0), unix.ESRCH) })
		}
	})
}

// stopShim stops the shim of a process until the function is called that it returns.
func (d *device) stopShim(pid int) (resume func()) {
	d.Helper()
	shim := parent(d, pid)
	check(d, unix.Kill(shim, unix.SIGSTOP))
	expect.Eventually(d, "the shim has stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", shim))
		return err == nil && bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" T"))
	})
	return func() {
		if err := unix.Kill(shim, unix.SIGCONT); err != nil && !errors.Is(err, unix.ESRCH) {
			d.Error(err)
		}
	}
}
