package container_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
)

// The caller of a deletion may give up, or die, when the shim has deleted the task and containerd has not yet ended the
// shim.
func TestADeletionThatWasBrokenOffLeavesNoShim(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		for name, next := range map[string]func(id string){
			"deleted": d.delete,
			"stopped": d.stop,
			"started": func(id string) { d.start(id); d.stop(id) },
		} {
			id := d.up(d.config(name, ""))
			shim := parent(t, d.find(id).Pid)
			d.deleteInShim(id, shim)
			next(id)
			expect.Eventually(d, name+": its shim ends", func() bool { return errors.Is(unix.Kill(shim, 0), unix.ESRCH) })
		}
	})
}

// deleteInShim ends and deletes a task, and containerd does not hear of it.
func (d *device) deleteInShim(id string, shim int) {
	d.Helper()
	version, address := endpoint(d, shim)
	conn := expect.Value(net.Dial("unix", address))(d)
	client := ttrpc.NewClient(conn)
	defer client.Close()
	service := fmt.Sprintf("containerd.task.v%d.Task", version) // both have the same messages
	for _, call := range []struct {
		method            string
		request, response any
	}{
		{"Kill", &task.KillRequest{ID: id, Signal: uint32(unix.SIGKILL), All: true}, new(task.KillRequest)},
		{"Wait", &task.WaitRequest{ID: id}, new(task.WaitResponse)},
		{"Delete", &task.DeleteRequest{ID: id}, new(task.DeleteResponse)},
	} {
		if err := client.Call(d.ctx(), service, call.method, call.request, call.response); err != nil {
			d.Fatalf("%s: %v", call.method, err)
		}
	}
}

// endpoint is where a shim listens, and which version of the task service it speaks there.
func endpoint(t testing.TB, shim int) (version int, address string) {
	t.Helper()
	bundle := fmt.Sprintf("/proc/%d/cwd", shim)
	text, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json"))
	if errors.Is(err, os.ErrNotExist) { // of an older containerd
		text, err = os.ReadFile(filepath.Join(bundle, "address"))
		text = []byte(fmt.Sprintf(`{"version":2,"address":%q}`, text))
	}
	check(t, err)
	var found struct {
		Version int
		Address string
	}
	check(t, json.Unmarshal(text, &found))
	return found.Version, strings.TrimPrefix(found.Address, "unix://")
}

func parent(t testing.TB, pid int) int {
	t.Helper()
	status := expect.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	_, rest, _ := strings.Cut(string(status), "PPid:")
	line, _, _ := strings.Cut(rest, "\n")
	return expect.Value(strconv.Atoi(strings.TrimSpace(line)))(t)
}

// A runc that was creating a container has outlived its shim, which was killed, and left its record.
func TestAContainerThatRuncKnowsAlreadyStarts(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		id := d.create(d.config("left", ""))
		check(t, os.MkdirAll(filepath.Join(d.run, "runc", containerdtest.Namespace, id), 0o711))
		d.start(id)
		d.stop(id)
	})
}

// The directory of a task that containerd has forgotten, with the root file system mounted, keeps it from making another.
func TestAContainerWhoseTaskContainerdForgotStarts(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: containerd is given time to remove it")
	}
	onEach(t, func(t *testing.T, d *device) {
		other := d.up(d.config("other", ""))
		bundle := expect.Value(os.Readlink(fmt.Sprintf("/proc/%d/cwd", parent(t, d.find(other).Pid))))(t)
		id := d.create(d.config("forgotten", ""))
		root := filepath.Join(filepath.Dir(bundle), id, "rootfs")
		d.write(filepath.Join(d.state, "kept/file"), "")
		check(t, errors.Join(os.MkdirAll(root, 0o711), unix.Mount(filepath.Join(d.state, "kept"), root, "", unix.MS_BIND, "")))
		defer func() { _ = unix.Unmount(root, unix.MNT_DETACH) }()

		d.start(id)
		expect.Equal(t, d.find(id).State, container.Running, "its state")
		expect.Value(os.Stat(filepath.Join(d.state, "kept/file")))(t)
	})
}

// An update of the device may take AppArmor away: containers that were made with its
// default profile run without.
func TestContainerOfADeviceThatHadAppArmor(t *testing.T) {
	d := onOne(t)
	id := d.create(d.config("web", ""))
	record := expect.Value(d.client.ContainerService().Get(d.ctx(), id))(t)
	spec := bytes.Replace(record.Spec.GetValue(), []byte(`"process":{`), []byte(`"process":{"apparmorProfile":"`+container.DefaultProfile+`",`), 1)
	record.Spec = &anypb.Any{TypeUrl: record.Spec.GetTypeUrl(), Value: spec}
	expect.Value(d.client.ContainerService().Update(d.ctx(), record, "spec"))(t)
	d.start(id)
	d.delete(id)
}

// containerd's database has no checksums, so a medium may lose a part of a record without anybody noticing.
func TestAContainerWithADamagedRecordIsMadeAnew(t *testing.T) {
	d := onOne(t)
	junk := &anypb.Any{Value: []byte("\rjunk")}
	for field, r := range map[string]containers.Container{
		"spec":       {Spec: junk},
		"extensions": {Extensions: map[string]typeurl.Any{"margolite/details": junk}},
	} {
		config := d.config("damaged", "")
		r.ID = d.up(config)
		expect.Value(d.client.ContainerService().Update(d.ctx(), r, field))(t)
		d.restart()
		expect.Equal(t, len(expect.Value(d.List(d.ctx()))(t)), 0, "containers without their %s", field)
		d.up(config)
		d.delete(r.ID)
	}
}
