package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	tasks "github.com/containerd/containerd/api/runtime/task/v3"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	backend "github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/log"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
)

func TestMain(m *testing.M) { os.Exit(isolated.Main(m)) }

// logged asks for a log at a URI, as the agent does.
type logged cio.Config

func (l logged) Config() cio.Config { return cio.Config(l) }
func (l logged) Cancel()            {}
func (l logged) Wait()              {}
func (l logged) Close() error       { return nil }

// lease holds what is made within the context: a collection would take the snapshot.
func lease(t *testing.T, client *containerd.Client) context.Context {
	t.Helper()
	ctx, release, err := client.WithLease(containerdtest.Context(t))
	check(t, err)
	t.Cleanup(func() {
		expect.OK(t, release(context.WithoutCancel(ctx)))
	})
	return ctx
}

// create makes a container that runs a shell.
func create(ctx context.Context, t *testing.T, client *containerd.Client, id string, terminal bool, script string) containerd.Container {
	t.Helper()
	mounts, err := client.SnapshotService("overlayfs").Prepare(ctx, id, "")
	check(t, err)
	err = mount.WithTempMount(ctx, mounts, func(root string) error {
		busybox, err := os.ReadFile("/bin/busybox")
		if err != nil {
			return err
		}
		for _, dir := range []string{"bin", "proc", "dev"} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				return err
			}
		}
		return os.WriteFile(filepath.Join(root, "bin", "busybox"), busybox, 0o755)
	})
	check(t, err)
	spec := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: []string{"/bin/busybox", "sh", "-c", script}, Cwd: "/", Env: []string{"PATH=/bin"}, Terminal: terminal},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}},
		},
		Linux: &specs.Linux{CgroupsPath: "/margolite-test/" + id, Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
		}},
		Annotations: map[string]string{"io.containerd.runc.v2.group": "test"},
	}
	container := expect.Value(client.NewContainer(ctx, id,
		containerd.WithSnapshotter("overlayfs"), containerd.WithSnapshot(id), containerd.WithSpec(spec)))(t)
	return container
}

// run runs a shell to its end and deletes its task.
func run(t *testing.T, client *containerd.Client, id, uri string, terminal bool, script string) {
	t.Helper()
	ctx := lease(t, client)
	container := create(ctx, t, client, id, terminal, script)
	io := logged{Terminal: terminal, Stdout: uri, Stderr: uri}
	task := expect.Value(container.NewTask(ctx, func(string) (cio.IO, error) { return io, nil }))(t)
	ended := expect.Value(task.Wait(ctx))(t)
	check(t, task.Start(ctx))
	select {
	case status := <-ended:
		expect.Equal(t, status.ExitCode(), 0, "exit code with error %v", status.Error())
	case <-time.After(time.Minute):
		t.Error("it does not end")
	}
	expect.Value(task.Delete(ctx))(t)
}

type line struct {
	Log, Stream string
	Time        time.Time
}

// kept reads a file as another program does.
func kept(t *testing.T, path string) []line {
	t.Helper()
	text := expect.Value(os.ReadFile(path))(t)
	var lines []line
	for decoder := json.NewDecoder(bytes.NewReader(text)); decoder.More(); {
		var l line
		check(t, decoder.Decode(&l))
		lines = append(lines, l)
	}
	return lines
}

func TestShimKeepsWhatContainersPrint(t *testing.T) {
	client := containerdtest.Official(t, containerdtest.Embedded(t))
	t.Run("with streams and times, to the last byte", func(t *testing.T) {
		path := log.Path(t.TempDir(), "streams")
		before := time.Now().Add(-time.Second)
		run(t, client, "streams", log.URI(path, log.Keep{}), false, "echo out; busybox sleep 0.1; echo err >&2; busybox sleep 0.1; printf end")
		got := kept(t, path)
		if len(got) != 3 || got[0].Log != "out\n" || got[1].Log != "err\n" || got[2].Log != "end" ||
			got[0].Stream != "stdout" || got[1].Stream != "stderr" || got[2].Stream != "stdout" {
			t.Fatalf("got %+v", got)
		}
		if !got[0].Time.After(before) || got[1].Time.Sub(got[0].Time) < 90*time.Millisecond || got[2].Time.After(time.Now()) {
			t.Errorf("times %+v", got)
		}
		left := expect.Value(filepath.Glob("/run/mt*/state/*/*/streams/margolite-*"))(t)
		expect.Equal(t, len(left), 0, "pipes are left: %v", left)
	})
	t.Run("with nothing lost when its task is deleted", func(t *testing.T) {
		path := log.Path(t.TempDir(), "burst")
		run(t, client, "burst", log.URI(path, log.Keep{MaxSize: 64 << 20}), false, "busybox seq 1 100000")
		got := kept(t, path)
		expect.Require(t, len(got) == 100_000, "%d lines", len(got))
		for i, l := range got {
			expect.Require(t, l.Log == fmt.Sprintln(i+1), "line %d is %q", i+1, l.Log)
		}
	})
	t.Run("from a terminal", func(t *testing.T) {
		path := log.Path(t.TempDir(), "tty")
		run(t, client, "tty", log.URI(path, log.Keep{}), true, "[ -t 0 ] && [ -t 1 ] && echo terminal; echo err >&2")
		got := kept(t, path)
		if len(got) != 2 || got[0].Log != "terminal\r\n" || got[1].Log != "err\r\n" || got[1].Stream != "stdout" {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("without holding it up when nothing can be kept", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "not", "there.log")
		run(t, client, "nowhere", log.URI(path, log.Keep{}), false, "busybox seq 1 100000")
	})
	t.Run("and leaves other tasks alone", func(t *testing.T) {
		path := log.Path(t.TempDir(), "plain")
		run(t, client, "plain", "file://"+path, false, "echo out")
		expect.Equal(t, string(expect.Value(os.ReadFile(path))(t)), "out\n", "got")
		run(t, client, "none", "", false, "echo out")
	})
}

// Whoever asks for a task may be told to leave while it is made. containerd takes back what it began, for some seconds,
// and looks after nothing of it from then on.
func TestACreationThatIsBrokenOffLeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: kills at every point")
	}
	client := containerdtest.Official(t, containerdtest.Embedded(t))
	const step = 3 // milliseconds; it takes some tens
	for n := range 20 {
		id := fmt.Sprintf("broken-%d", n)
		ctx := lease(t, client)
		container := create(ctx, t, client, id, false, "sleep 1000")
		io := logged{Stdout: log.URI(log.Path(t.TempDir(), id), log.Keep{}), Stderr: ""}
		limited, cancel := context.WithTimeout(ctx, time.Duration(n*step)*time.Millisecond)
		_, broken := container.NewTask(limited, func(string) (cio.IO, error) { return io, nil })
		cancel()
		if task, err := container.Task(ctx, nil); err == nil { // it was just done
			if _, err = task.Delete(ctx, containerd.WithProcessKill); err != nil && !errdefs.IsNotFound(err) {
				t.Errorf("after %d ms (%v): %v", n*step, broken, err)
			}
		}
		awaitNone(t, id)
	}
}

// Where a containerd was killed, nothing but the shim clears away what it began; it goes on for other containers.
func TestACreationThatFailsLeavesNothing(t *testing.T) {
	embedded := containerdtest.Embedded(t)
	client := containerdtest.Official(t, embedded)
	ctx := lease(t, client)
	other := expect.Value(create(ctx, t, client, "other", false, "sleep 1000").NewTask(ctx, cio.NullIO))(t)
	defer func() {
		expect.OK(t, expect.ErrorOf(other.Delete(ctx, containerd.WithProcessKill)))
	}()
	sockets, err := filepath.Glob(filepath.Join(filepath.Dir(backend.Address(embedded)), "s", "*"))
	expect.Require(t, err == nil && len(sockets) == 1, "sockets of shims: %v, %v", sockets, err)
	conn := expect.Value(net.Dial("unix", sockets[0]))(t)
	defer conn.Close()
	spec := expect.Value(create(ctx, t, client, "failing", false, "sleep 1000").Spec(ctx))(t)
	config := expect.Value(json.Marshal(spec))(t)
	bundle := t.TempDir()
	check(t, os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600))
	mounts := expect.Value(client.SnapshotService("overlayfs").Mounts(ctx, "failing"))(t)
	_, err = tasks.NewTTRPCTaskClient(ttrpc.NewClient(conn)).Create(ctx, &tasks.CreateTaskRequest{
		ID: "failing", Bundle: bundle, Rootfs: mount.ToProto(mounts), Stdout: log.URI(log.Path(bundle, "failing"), log.Keep{}),
		Stdin: filepath.Join(bundle, "missing"), // is opened when runc is done
	})
	expect.True(t, err != nil, "it is created without its standard input")
	awaitNone(t, "failing")
}

// A containerd that gives up a shim before that has opened its log never reads the log again.
func TestAShimWhoseLogNobodyReadsEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: long waits")
	}
	dir := containerdtest.Dir(t)
	check(t, unix.Mkfifo(filepath.Join(dir, "log"), 0o600))
	socket := filepath.Join(dir, "s")
	listener := expect.Value(net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"}))(t)
	listener.SetUnlinkOnClose(false)
	file := expect.Value(listener.File())(t)
	ctx, cancel := context.WithTimeout(t.Context(), idleTimeout+15*time.Second)
	defer cancel()
	shim := exec.CommandContext(ctx, containerdtest.Shim(t), "-namespace", "nobody", "-id", "waits", "-address", socket)
	shim.Dir, shim.ExtraFiles = dir, []*os.File{file}
	out, err := shim.CombinedOutput()
	expect.True(t, ctx.Err() == nil, "it waits for more than %s: %v, %s", idleTimeout, err, out)
	expect.Error(t, expect.ErrorOf(os.Stat(socket)), os.ErrNotExist, "its socket is left")
	expect.OK(t, errors.Join(file.Close(), listener.Close()))
}

// awaitNone waits until neither a shim nor runc nor a process of a container is left.
func awaitNone(t *testing.T, id string) {
	t.Helper()
	for end := time.Now().Add(idleTimeout + 15*time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := processesOf(t, id)
		if len(left) == 0 {
			return
		}
		expect.Require(t, !time.Now().After(end), "of %s there is left: %q", id, left)
	}
}

// processesOf are the command lines of those that name a container, or are in its control group.
func processesOf(t *testing.T, id string) []string {
	t.Helper()
	files := expect.Value(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	var all []string
	for _, file := range files {
		line, _ := os.ReadFile(file) // it may have ended
		group, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cgroup"))
		if words := strings.Split(string(line), "\x00"); slices.Contains(words, id) || strings.Contains(string(group), "/"+id+"\n") {
			all = append(all, strings.Join(words, " "))
		}
	}
	return all
}
