package embedded_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/embedded"
	"github.com/margolite/margolite/test/containerdtest"
)

// childRoot tells the test program to be the process that a test kills.
const childRoot = "MARGOLITE_TEST_CHILD_ROOT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childRoot); dir != "" {
		if err := runChild(dir); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestTaskRunsAndItsEventsArrive(t *testing.T) {
	for _, backend := range containerdtest.Backends() {
		t.Run(backend.Name, func(t *testing.T) {
			if testing.Short() && backend.OtherShim {
				t.Skip("in make test-all: the system's containerd")
			}
			own := backend.Start(t)
			client := containerdtest.Official(t, own)
			ctx := containerdtest.Context(t)
			if v, err := client.Version(ctx); err != nil || v.Version == "" {
				t.Errorf("no version: %v, %v", v, err)
			}
			events, errs := own.EventService().Subscribe(ctx, `topic=="/tasks/exit"`)
			task := start(t, client, "one", "", "sh", "-c", "exit 7")
			exited, err := task.Wait(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := task.Start(ctx); err != nil {
				t.Fatal(err)
			}
			if status := <-exited; status.ExitCode() != 7 {
				t.Errorf("exit code is %d, want 7 (%v)", status.ExitCode(), status.Error())
			}
			select {
			case event := <-events:
				if event.Namespace != containerdtest.Namespace || event.Topic != "/tasks/exit" {
					t.Errorf("event is %v", event)
				}
			case err := <-errs:
				t.Fatal(err)
			case <-time.After(10 * time.Second):
				t.Fatal("no event")
			}
			if _, err := task.Delete(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestContainersOfAGroupShareOneShim(t *testing.T) {
	dir := containerdtest.Dir(t)
	shim := filepath.Join(dir, "shim") // of this test alone
	if err := copyFile(containerdtest.Shim(t), shim); err != nil {
		t.Fatal(err)
	}
	server, client := open(t, dir, shim)
	defer server.Close()
	ctx := containerdtest.Context(t)
	for _, id := range []string{"a", "b", "c"} {
		if err := start(t, client, id, "project", "sleep", "1000").Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	pids := shims(t, shim)
	if len(pids) != 1 {
		t.Fatalf("%d shims for one group", len(pids))
	}
	if status, err := os.ReadFile("/proc/" + pids[0] + "/status"); err == nil {
		t.Logf("shim of three containers: %s", regexp.MustCompile(`(VmRSS|RssAnon):\s*\d+ kB`).FindAll(status, -1))
	}
	// The container that gave the group its shim may go without the others.
	end(t, client, "a")
	task := load(t, client, "b")
	if status, err := task.Status(ctx); err != nil || status.Status != containerd.Running {
		t.Errorf("b is %v, %v", status, err)
	}
	if err := start(t, client, "a", "project", "sleep", "1000").Start(ctx); err != nil {
		t.Errorf("cannot come back into the group: %v", err)
	}
	if n := len(shims(t, shim)); n != 1 {
		t.Errorf("%d shims for one group", n)
	}
	for _, id := range []string{"a", "b", "c"} {
		end(t, client, id)
	}
	await(t, "the shim ends with its last container", func() bool { return len(shims(t, shim)) == 0 })
}

func TestWorkloadsOutliveTheProcess(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{
		"when it is closed":  syscall.SIGTERM,
		"when it is killed":  syscall.SIGKILL,
		"when it is aborted": syscall.SIGQUIT,
	} {
		t.Run(name, func(t *testing.T) {
			shim := containerdtest.Shim(t)
			dir := containerdtest.Dir(t)
			pid := startChild(t, dir, shim, sig)

			server, client := open(t, dir, shim)
			defer server.Close()
			task := load(t, client, "survivor")
			if task.Pid() != pid {
				t.Errorf("pid is %d, was %d", task.Pid(), pid)
			}
			expectRunning(t, task)
			ctx := containerdtest.Context(t)
			exited, err := task.Wait(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := task.Kill(ctx, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if status := <-exited; status.ExitCode() != 137 {
				t.Errorf("exit code is %d (%v)", status.ExitCode(), status.Error())
			}
			end(t, client, "survivor")
		})
	}
}

func TestWorkloadsOutliveAMovedShim(t *testing.T) {
	dir := containerdtest.Dir(t)
	old := filepath.Join(dir, "old-shim")
	if err := copyFile(containerdtest.Shim(t), old); err != nil {
		t.Fatal(err)
	}
	startChild(t, dir, old, syscall.SIGKILL)
	if err := os.Remove(old); err != nil {
		t.Fatal(err)
	}
	server, client := open(t, dir, containerdtest.Shim(t))
	defer server.Close()
	expectRunning(t, load(t, client, "survivor"))
	end(t, client, "survivor")
}

// containerd gives up a shim that does not respond while it starts, ends its container and never asks it again.
func TestAShimThatIsGivenUpEnds(t *testing.T) {
	dir := containerdtest.Dir(t)
	shim := filepath.Join(dir, "shim") // of this test alone
	if err := copyFile(containerdtest.Shim(t), shim); err != nil {
		t.Fatal(err)
	}
	startChild(t, dir, shim, syscall.SIGKILL)
	pids := shims(t, shim)
	if len(pids) != 1 {
		t.Fatalf("%d shims", len(pids))
	}
	pid, err := strconv.Atoi(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	server, client := open(t, dir, shim)
	defer server.Close()
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await(t, "it ends", func() bool { return len(shims(t, shim)) == 0 })
	end(t, client, "survivor")
}

func TestRootIsLocked(t *testing.T) {
	dir := containerdtest.Dir(t)
	server, _ := open(t, dir, containerdtest.Shim(t))
	options := options(t, dir, containerdtest.Shim(t))
	options.State += "2"
	if _, err := embedded.Start(t.Context(), options); !errors.Is(err, embedded.ErrLocked) {
		t.Errorf("second start: %v, want ErrLocked", err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := embedded.Start(t.Context(), options)
	if err != nil {
		t.Fatalf("start after close: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestMountsOfAKilledPredecessorAreCleared(t *testing.T) {
	dir := containerdtest.Dir(t)
	server, _ := open(t, dir, "")
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, "state", "mounts", "containerd-mount1")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := mount.All([]mount.Mount{{Type: "tmpfs", Source: "tmpfs"}}, left); err != nil {
		t.Fatal(err)
	}
	server, _ = open(t, dir, "")
	defer server.Close()
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

// A containerd that is killed while it deletes a bundle leaves a part of it under
// a hidden name, which is in the way of the next one of the same container.
func TestBundlesOfAKilledPredecessorAreCleared(t *testing.T) {
	dir := containerdtest.Dir(t)
	bundle := filepath.Join(dir, "state", "io.containerd.runtime.v2.task", containerdtest.Namespace, "a")
	hidden := filepath.Join(filepath.Dir(bundle), ".a")
	for _, path := range []string{bundle, filepath.Join(hidden, "rootfs")} {
		if err := os.MkdirAll(path, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(hidden, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	server, client := open(t, dir, containerdtest.Shim(t))
	defer server.Close()
	defer client.Close()
	for _, path := range []string{bundle, hidden} {
		await(t, path+" is gone", func() bool {
			_, err := os.Stat(path)
			return errors.Is(err, os.ErrNotExist)
		})
	}
}

func TestDamagedMetadataIsAnError(t *testing.T) {
	dir := containerdtest.Dir(t)
	server, _ := open(t, dir, containerdtest.Shim(t))
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	meta := filepath.Join(dir, "root", "io.containerd.metadata.v1.bolt", "meta.db")
	if err := os.WriteFile(meta, []byte(strings.Repeat("not a database ", 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := embedded.Start(t.Context(), options(t, dir, "")); err == nil {
		t.Error("started", s.Close())
	}
}

func TestOnlyTheOwnerReachesContainerd(t *testing.T) {
	dir := containerdtest.Dir(t)
	server, _ := open(t, dir, containerdtest.Shim(t))
	defer server.Close()
	for path, want := range map[string]os.FileMode{
		server.Address():            0o600,
		server.Address() + ".ttrpc": 0o600,
		filepath.Join(dir, "root"):  0o700,
		filepath.Join(dir, "state"): 0o711,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("mode of %s is %o, want %o", path, got, want)
		}
	}
}

func TestCtrSpeaksToTheSocket(t *testing.T) {
	ctr, err := exec.LookPath("ctr")
	if err != nil {
		t.Skip("ctr is not installed")
	}
	dir := containerdtest.Dir(t)
	server, client := open(t, dir, containerdtest.Shim(t))
	defer server.Close()
	if err := start(t, client, "seen", "", "sleep", "1000").Start(containerdtest.Context(t)); err != nil {
		t.Fatal(err)
	}
	defer end(t, client, "seen")
	for args, want := range map[string]string{
		"version":                "2.4",
		"namespaces ls":          containerdtest.Namespace,
		"containers ls":          "seen",
		"tasks ls":               "RUNNING",
		"plugins ls":             "io.containerd.runtime.v2",
		"images ls":              "REF",
		"content ls":             "DIGEST",
		"snapshots ls":           "seen",
		"leases ls":              "ID",
		"tasks exec --exec-id x": "",
	} {
		words := strings.Fields(args)
		if want == "" {
			words, want = append(words, "seen", "echo", "hello"), "hello"
		}
		out, err := exec.CommandContext(t.Context(), ctr,
			append([]string{"-a", server.Address(), "-n", containerdtest.Namespace}, words...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("ctr %s: %v\n%s", strings.Join(words, " "), err, out)
		}
	}
}

func TestGarbageIsWhatNothingHolds(t *testing.T) {
	client := containerdtest.Embedded(t)
	ctx := containerdtest.Context(t)
	store := client.ContentStore()
	put := func(ctx context.Context, text string) digest.Digest {
		desc := ocispec.Descriptor{Digest: digest.FromString(text), Size: int64(len(text))}
		if err := content.WriteBlob(ctx, store, text, strings.NewReader(text), desc); err != nil {
			t.Fatal(err)
		}
		return desc.Digest
	}
	lease, err := client.LeasesService().Create(ctx, leases.WithID("held"))
	if err != nil {
		t.Fatal(err)
	}
	held := put(leases.WithLease(ctx, lease.ID), "held by a lease")
	loose := put(ctx, "held by nothing")
	// The end of any lease starts a collection; asked for synchronously it is over when the call returns.
	other, err := client.LeasesService().Create(ctx, leases.WithRandomID())
	if err != nil {
		t.Fatal(err)
	}
	if err := client.LeasesService().Delete(ctx, other, leases.SynchronousDelete); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Info(ctx, held); err != nil {
		t.Errorf("what a lease holds is gone: %v", err)
	}
	if _, err := store.Info(ctx, loose); !errdefs.IsNotFound(err) {
		t.Errorf("what nothing holds is still there: %v", err)
	}
	if err := client.LeasesService().Delete(ctx, lease); err != nil {
		t.Fatal(err)
	}
	await(t, "a deletion is followed by a collection", func() bool {
		_, err := store.Info(ctx, held)
		return errdefs.IsNotFound(err)
	})
}

// A kill between the deletion of a record and that of its files leaves the files.
func TestFilesThatNoRecordKnowsAreCollected(t *testing.T) {
	dir, shim := containerdtest.Dir(t), containerdtest.Shim(t)
	server, client := open(t, dir, shim)
	ctx := containerdtest.Context(t)
	lease, err := client.LeasesService().Create(ctx, leases.WithID("held"))
	if err != nil {
		t.Fatal(err)
	}
	held := ocispec.Descriptor{Digest: digest.FromString("held"), Size: 4}
	if err := content.WriteBlob(leases.WithLease(ctx, lease.ID), client.ContentStore(), "held", strings.NewReader("held"), held); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(client.Close(), server.Close()); err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(dir, "root/io.containerd.content.v1.content/blobs/sha256", digest.FromString("orphan").Encoded())
	layer := filepath.Join(dir, "root/io.containerd.snapshotter.v1.overlayfs/snapshots/99")
	if err := errors.Join(os.WriteFile(blob, []byte("orphan"), 0o444), os.MkdirAll(filepath.Join(layer, "fs"), 0o700)); err != nil {
		t.Fatal(err)
	}

	server, client = open(t, dir, shim)
	gone := func(paths ...string) {
		t.Helper()
		for _, path := range paths {
			await(t, path+" is gone", func() bool {
				_, err := os.Stat(path)
				return errors.Is(err, os.ErrNotExist)
			})
		}
	}
	gone(blob, layer)
	if err := errors.Join(client.Close(), server.Close()); err != nil {
		t.Fatal(err)
	}
	server, client = open(t, dir, shim)
	defer server.Close()
	defer client.Close()
	if _, err := client.ContentStore().Info(ctx, held.Digest); err != nil {
		t.Errorf("what a lease holds is gone: %v", err)
	}
}

// What is left of a download by a medium that failed or lost its power hinders nobody.
func TestTornDownloadsAreDropped(t *testing.T) {
	dir, shim := containerdtest.Dir(t), containerdtest.Shim(t)
	server, client := open(t, dir, shim)
	ctx := containerdtest.Context(t)
	lease, err := client.LeasesService().Create(ctx, leases.WithID("held"))
	if err != nil {
		t.Fatal(err)
	}
	ctx = leases.WithLease(ctx, lease.ID)
	// Over the socket a download is closed some time after its client has closed it.
	direct, err := server.Client(ctx, containerdtest.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	tears := map[string]func(path string) error{
		"":                      func(string) error { return nil },
		"no data":               func(path string) error { return os.Remove(filepath.Join(path, "data")) },
		"no reference":          func(path string) error { return os.Remove(filepath.Join(path, "ref")) },
		"half of its reference": func(path string) error { return os.Truncate(filepath.Join(path, "ref"), 10) },
		"nothing of its times":  func(path string) error { return os.Truncate(filepath.Join(path, "startedat"), 0) },
		"nothing at all":        func(path string) error { return errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700)) },
	}
	paths := make(map[string]string)
	ingests := filepath.Join(dir, "root/io.containerd.content.v1.content/ingest")
	for name := range tears {
		before, err := os.ReadDir(ingests)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		w, err := direct.ContentStore().Writer(ctx, content.WithRef("download "+name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("half")); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		after, err := os.ReadDir(ingests)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range after {
			if !slices.ContainsFunc(before, func(b os.DirEntry) bool { return b.Name() == entry.Name() }) {
				paths[name] = filepath.Join(ingests, entry.Name())
			}
		}
	}
	if err := errors.Join(direct.Close(), client.Close(), server.Close()); err != nil {
		t.Fatal(err)
	}
	for name, tear := range tears {
		if err := tear(paths[name]); err != nil {
			t.Fatal(err)
		}
	}
	// A start that was killed while the content store looked at its file system.
	check := filepath.Join(filepath.Dir(ingests), ".fsverity-check-1")
	if err := errors.Join(os.Mkdir(check, 0o700), os.WriteFile(filepath.Join(check, "supported"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	paths["a look at the file system"] = check

	server, client = open(t, dir, shim)
	defer server.Close()
	defer client.Close()
	left, err := client.ContentStore().ListStatuses(ctx)
	if err != nil || len(left) != 1 || left[0].Ref != "download " || left[0].Offset != 4 {
		t.Errorf("downloads are %+v, %v, want the whole one alone", left, err)
	}
	for name, path := range paths {
		if _, err := os.Stat(path); name != "" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: it is still there: %v", name, err)
		}
	}
	if direct, err = server.Client(ctx, containerdtest.Namespace); err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	w, err := direct.ContentStore().Writer(ctx, content.WithRef("download no data"))
	if err != nil {
		t.Fatalf("it cannot be downloaded again: %v", err)
	}
	if status, err := w.Status(); err != nil || status.Offset != 0 {
		t.Errorf("it goes on at byte %d, %v", status.Offset, err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// options are those of a containerd under dir.
func options(t testing.TB, dir, shim string) embedded.Options {
	return embedded.Options{
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"), Shim: shim, Logger: containerdtest.Logger(t),
	}
}

func open(t *testing.T, dir, shim string) (*embedded.Server, *containerd.Client) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	server, err := embedded.Start(t.Context(), options(t, dir, shim))
	if err != nil {
		t.Fatal(err)
	}
	client, err := server.Client(t.Context(), containerdtest.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return server, containerdtest.Official(t, client)
}

// startChild runs a containerd with one container in another process, ends that process with the signal, and returns
// the container's pid.
func startChild(t *testing.T, dir, shim string, sig syscall.Signal) uint32 {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childRoot+"="+dir, "MARGOLITE_TEST_SHIM="+shim)
	child.Stderr = os.Stderr
	if sig == syscall.SIGQUIT {
		child.Stderr = nil // the stacks
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid uint32
	if _, err := fmt.Sscanf(line, "pid %d", &pid); err != nil {
		t.Fatalf("child says %q", line)
	}
	if err := child.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	return pid
}

// runChild is the other process.
func runChild(dir string) error {
	ctx := namespaces.WithNamespace(context.Background(), containerdtest.Namespace)
	server, err := embedded.Start(ctx, embedded.Options{
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"), Shim: os.Getenv("MARGOLITE_TEST_SHIM"),
	})
	if err != nil {
		return err
	}
	if _, err := server.Client(ctx, containerdtest.Namespace); err != nil {
		return err
	}
	client, err := containerd.New(server.Address())
	if err != nil {
		return err
	}
	task, err := create(ctx, client, "survivor", "", "sleep", "1000")
	if err != nil {
		return err
	}
	if err := task.Start(ctx); err != nil {
		return err
	}
	term, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	fmt.Println("pid", task.Pid())
	<-term.Done()
	return server.Close()
}

func start(t *testing.T, client *containerd.Client, id, group string, args ...string) containerd.Task {
	task, err := create(containerdtest.Context(t), client, id, group, args...)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

// create makes a container with busybox as its only file and a task that is not started.
func create(ctx context.Context, client *containerd.Client, id, group string, args ...string) (containerd.Task, error) {
	ctx, release, err := client.WithLease(ctx) // or a collection takes the snapshot
	if err != nil {
		return nil, err
	}
	defer func() { _ = release(ctx) }()
	mounts, err := client.SnapshotService("overlayfs").Prepare(ctx, id, "")
	if err != nil {
		return nil, err
	}
	err = mount.WithTempMount(ctx, mounts, func(root string) error {
		for _, dir := range []string{"bin", "proc"} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				return err
			}
		}
		for _, applet := range []string{"sh", "sleep", "echo"} {
			if err := os.Symlink("busybox", filepath.Join(root, "bin", applet)); err != nil {
				return err
			}
		}
		return copyFile("/bin/busybox", filepath.Join(root, "bin", "busybox"))
	})
	if err != nil {
		return nil, err
	}
	spec := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/bin"}},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux: &specs.Linux{CgroupsPath: "/margolite-test/" + id, Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
		}},
	}
	if group != "" {
		spec.Annotations = map[string]string{"io.containerd.runc.v2.group": group}
	}
	container, err := client.NewContainer(ctx, id,
		containerd.WithSnapshotter("overlayfs"), containerd.WithSnapshot(id), containerd.WithSpec(spec))
	if err != nil {
		return nil, err
	}
	return container.NewTask(ctx, cio.NullIO)
}

func load(t *testing.T, client *containerd.Client, id string) containerd.Task {
	ctx := containerdtest.Context(t)
	container, err := client.LoadContainer(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func end(t *testing.T, client *containerd.Client, id string) {
	t.Helper()
	ctx := containerdtest.Context(t)
	container, err := client.LoadContainer(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if task, err := container.Task(ctx, nil); err == nil {
		if _, err := task.Delete(ctx, containerd.WithProcessKill); err != nil {
			t.Errorf("cannot delete task: %v", err)
		}
	}
	if err := container.Delete(ctx, containerd.WithSnapshotCleanup); err != nil {
		t.Errorf("cannot delete container: %v", err)
	}
}

func expectRunning(t *testing.T, task containerd.Task) {
	t.Helper()
	if status, err := task.Status(containerdtest.Context(t)); err != nil || status.Status != containerd.Running {
		t.Errorf("task is %v, %v, want running", status.Status, err)
	}
}

// shims are the processes that run the program.
func shims(t *testing.T, program string) []string {
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, exe := range exes {
		if target, err := os.Readlink(exe); err == nil && target == program {
			pids = append(pids, filepath.Base(filepath.Dir(exe)))
		}
	}
	return pids
}

// await polls for what no event tells.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}
