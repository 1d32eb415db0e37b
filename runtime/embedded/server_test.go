package embedded_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/embedded"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/ociimage"
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
	os.Exit(isolated.Main(m))
}

func TestWorkloadsOutliveAMovedShim(t *testing.T) {
	dir := containerdtest.Dir(t)
	old := filepath.Join(dir, "old-shim")
	check(t, copyFile(containerdtest.Shim(t), old))
	startChild(t, dir, old)
	check(t, os.Remove(old))
	server, client := open(t, dir, containerdtest.Shim(t))
	defer server.Close()
	expectRunning(t, client, "survivor")
	end(t, client, "survivor")
}

// containerd gives up a shim that does not respond while it starts, ends its container and never asks it again.
func TestAShimThatIsGivenUpEnds(t *testing.T) {
	dir := containerdtest.Dir(t)
	shim := filepath.Join(dir, "shim") // of this test alone
	check(t, copyFile(containerdtest.Shim(t), shim))
	startChild(t, dir, shim)
	pids := shims(t, shim)
	expect.Require(t, len(pids) == 1, "%d shims", len(pids))
	pid := expect.Value(strconv.Atoi(pids[0]))(t)
	check(t, syscall.Kill(pid, syscall.SIGSTOP))
	server, client := open(t, dir, shim)
	defer server.Close()
	check(t, syscall.Kill(pid, syscall.SIGCONT))
	expect.Eventually(t, "it ends", func() bool { return len(shims(t, shim)) == 0 })
	end(t, client, "survivor")
}

func TestRootIsLocked(t *testing.T) {
	dir := containerdtest.Dir(t)
	server, _ := open(t, dir, containerdtest.Shim(t))
	options := options(t, dir, containerdtest.Shim(t))
	options.State += "2"
	expect.Error(t, expect.ErrorOf(embedded.Start(t.Context(), options)), embedded.ErrLocked, "second start")
	check(t, server.Close())
	expect.OK(t, expect.Value(embedded.Start(t.Context(), options))(t).Close())
}

func TestMountsOfAKilledPredecessorAreCleared(t *testing.T) {
	dir := containerdtest.Dir(t)
	server, _ := open(t, dir, "")
	check(t, server.Close())
	left := filepath.Join(dir, "state", "mounts", "containerd-mount1")
	check(t, os.MkdirAll(left, 0o700))
	check(t, mount.All([]mount.Mount{{Type: "tmpfs", Source: "tmpfs"}}, left))
	server, _ = open(t, dir, "")
	defer server.Close()
	expect.Error(t, expect.ErrorOf(os.Stat(left)), os.ErrNotExist, "still there")
}

// A containerd that is killed while it deletes a bundle leaves a part of it under
// a hidden name, which is in the way of the next one of the same container.
func TestBundlesOfAKilledPredecessorAreCleared(t *testing.T) {
	dir := containerdtest.Dir(t)
	bundle := filepath.Join(dir, "state", "io.containerd.runtime.v2.task", containerdtest.Namespace, "a")
	hidden := filepath.Join(filepath.Dir(bundle), ".a")
	for _, path := range []string{bundle, filepath.Join(hidden, "rootfs")} {
		check(t, os.MkdirAll(path, 0o711))
	}
	check(t, os.WriteFile(filepath.Join(hidden, "config.json"), []byte("{}"), 0o600))
	server, client := open(t, dir, containerdtest.Shim(t))
	defer server.Close()
	defer client.Close()
	awaitGone(t, bundle, hidden)
}

func TestDamagedMetadataIsAnError(t *testing.T) {
	dir := containerdtest.Dir(t)
	server, _ := open(t, dir, containerdtest.Shim(t))
	check(t, server.Close())
	meta := filepath.Join(dir, "root", "io.containerd.metadata.v1.bolt", "meta.db")
	check(t, os.WriteFile(meta, []byte(strings.Repeat("not a database ", 5000)), 0o600))
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
		info := expect.Value(os.Stat(path))(t)
		expect.Equal(t, info.Mode().Perm(), want, "mode of %s", path)
	}
}

// A layer that comes by the socket has the same bounds as one of this process: a bomb behind its end is refused.
func TestLayersOfTheSocketAreBounded(t *testing.T) {
	server, client := open(t, containerdtest.Dir(t), containerdtest.Shim(t))
	defer server.Close()
	ctx, release, err := client.WithLease(containerdtest.Context(t))
	check(t, err)
	for name, size := range map[string]int{"whole": 1 << 10, "bomb": 64 << 20} {
		layer := expect.Value(ociimage.Gzip(make([]byte, size)))(t)
		desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(layer), Size: int64(len(layer))}
		check(t, content.WriteBlob(ctx, client.ContentStore(), name, bytes.NewReader(layer), desc))
		mounts := expect.Value(client.SnapshotService("overlayfs").Prepare(ctx, name, ""))(t)
		_, err := client.DiffService().Apply(ctx, desc, mounts)
		expect.Equal(t, err != nil, name == "bomb", "%s is refused: %v", name, err)
	}
	expect.OK(t, release(ctx))
}

// A kill between the deletion of a record and that of its files leaves the files.
func TestFilesThatNoRecordKnowsAreCollected(t *testing.T) {
	dir, shim := containerdtest.Dir(t), containerdtest.Shim(t)
	server, client := open(t, dir, shim)
	ctx := containerdtest.Context(t)
	lease := expect.Value(client.LeasesService().Create(ctx, leases.WithID("held")))(t)
	held := ocispec.Descriptor{Digest: digest.FromString("held"), Size: 4}
	check(t, content.WriteBlob(leases.WithLease(ctx, lease.ID), client.ContentStore(), "held", strings.NewReader("held"), held))
	// The start before this one was killed while it made containerd look.
	direct := expect.Value(server.Client(ctx, containerdtest.Namespace))(t)
	w := expect.Value(direct.ContentStore().Writer(ctx, content.WithRef("look at files")))(t)
	check(t, errors.Join(w.Close(), direct.Close(), client.Close(), server.Close()))
	looks, _ := filepath.Glob(filepath.Join(dir, "root/io.containerd.content.v1.content/ingest/*"))
	expect.Require(t, len(looks) == 1, "unfinished content: %q, want one", looks)
	_ = os.Remove(filepath.Join(dir, "root/closed")) // it was killed
	blob := filepath.Join(dir, "root/io.containerd.content.v1.content/blobs/sha256", digest.FromString("orphan").Encoded())
	layer := filepath.Join(dir, "root/io.containerd.snapshotter.v1.overlayfs/snapshots/99")
	check(t, errors.Join(os.WriteFile(blob, []byte("orphan"), 0o444), os.MkdirAll(filepath.Join(layer, "fs"), 0o700)))

	server, client = open(t, dir, shim)
	awaitGone(t, blob, layer, looks[0])
	check(t, errors.Join(client.Close(), server.Close()))
	server, client = open(t, dir, shim)
	defer server.Close()
	defer client.Close()
	expect.Error(t, expect.ErrorOf(client.ContentStore().Info(ctx, held.Digest)), nil, "what a lease holds is gone")
}

// What is left of a download by a medium that failed or lost its power hinders nobody.
func TestTornDownloadsAreDropped(t *testing.T) {
	dir, shim := containerdtest.Dir(t), containerdtest.Shim(t)
	server, client := open(t, dir, shim)
	ctx := containerdtest.Context(t)
	lease := expect.Value(client.LeasesService().Create(ctx, leases.WithID("held")))(t)
	ctx = leases.WithLease(ctx, lease.ID)
	// Over the socket a download is closed some time after its client has closed it.
	direct := expect.Value(server.Client(ctx, containerdtest.Namespace))(t)
	tears := map[string]func(path string) error{
		"":                      func(string) error { return nil },
		"no data":               func(path string) error { return os.Remove(filepath.Join(path, "data")) },
		"no reference":          func(path string) error { return os.Remove(filepath.Join(path, "ref")) },
		"half of its reference": func(path string) error { return os.Truncate(filepath.Join(path, "ref"), 10) },
		"nothing of its times":  func(path string) error { return os.Truncate(filepath.Join(path, "startedat"), 0) },
		"nothing at all":        func(path string) error { return errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700)) },
	}
	for name := range tears {
		w, err := direct.ContentStore().Writer(ctx, content.WithRef("download "+name))
		check(t, err)
		_, err = w.Write([]byte("half"))
		check(t, errors.Join(err, w.Close()))
	}
	check(t, errors.Join(direct.Close(), client.Close(), server.Close()))
	paths := make(map[string]string)
	store := filepath.Join(dir, "root/io.containerd.content.v1.content")
	ingests, _ := filepath.Glob(filepath.Join(store, "ingest/*"))
	for _, path := range ingests {
		ref, _ := os.ReadFile(filepath.Join(path, "ref"))
		_, name, _ := strings.Cut(string(ref), "download ")
		paths[name] = path
	}
	for name, tear := range tears {
		check(t, tear(paths[name]))
	}
	// A start that was killed while the content store looked at its file system.
	look := filepath.Join(store, ".fsverity-check-1")
	check(t, errors.Join(os.Mkdir(look, 0o700), os.WriteFile(filepath.Join(look, "supported"), nil, 0o600)))
	paths["a look at the file system"] = look

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
	direct = expect.Value(server.Client(ctx, containerdtest.Namespace))(t)
	defer direct.Close()
	w := expect.Value(direct.ContentStore().Writer(ctx, content.WithRef("download no data")))(t)
	expect.Equal(t, expect.Value(w.Status())(t).Offset, 0, "it goes on at byte")
	expect.OK(t, w.Close())
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
	server := expect.Value(embedded.Start(t.Context(), options(t, dir, shim)))(t)
	client := expect.Value(server.Client(t.Context(), containerdtest.Namespace))(t)
	t.Cleanup(func() { client.Close() })
	return server, containerdtest.Official(t, client)
}

// startChild runs a containerd with one container in another process, and kills that process.
func startChild(t *testing.T, dir, shim string) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childRoot+"="+dir, "MARGOLITE_TEST_SHIM="+shim)
	child.Stderr = os.Stderr
	out := expect.Value(child.StdoutPipe())(t)
	check(t, child.Start())
	line := expect.Value(bufio.NewReader(out).ReadString('\n'))(t)
	expect.Require(t, line == "started\n", "child says %q", line)
	check(t, child.Process.Kill())
	_ = child.Wait()
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
	task, err := create(ctx, client, "survivor", "busybox", "sleep", "1000")
	if err != nil {
		return err
	}
	if err := task.Start(ctx); err != nil {
		return err
	}
	fmt.Println("started")
	select {} // until it is killed
}

// create makes a container with busybox as its only file and a task that is not started.
func create(ctx context.Context, client *containerd.Client, id string, args ...string) (containerd.Task, error) {
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
	container, err := client.NewContainer(ctx, id,
		containerd.WithSnapshotter("overlayfs"), containerd.WithSnapshot(id), containerd.WithSpec(spec))
	if err != nil {
		return nil, err
	}
	return container.NewTask(ctx, cio.NullIO)
}

func end(t *testing.T, client *containerd.Client, id string) {
	t.Helper()
	ctx := containerdtest.Context(t)
	container := expect.Value(client.LoadContainer(ctx, id))(t)
	if task, err := container.Task(ctx, nil); err == nil {
		expect.Error(t, expect.ErrorOf(task.Delete(ctx, containerd.WithProcessKill)), nil, "cannot delete task")
	}
	expect.Error(t, container.Delete(ctx, containerd.WithSnapshotCleanup), nil, "cannot delete container")
}

func expectRunning(t *testing.T, client *containerd.Client, id string) {
	t.Helper()
	ctx := containerdtest.Context(t)
	container := expect.Value(client.LoadContainer(ctx, id))(t)
	task := expect.Value(container.Task(ctx, nil))(t)
	expect.Equal(t, expect.Value(task.Status(ctx))(t).Status, containerd.Running, "status of the task")
}

// shims are the processes that run the program.
func shims(t *testing.T, program string) []string {
	exes := expect.Value(filepath.Glob("/proc/[0-9]*/exe"))(t)
	var pids []string
	for _, exe := range exes {
		if target, err := os.Readlink(exe); err == nil && target == program {
			pids = append(pids, filepath.Base(filepath.Dir(exe)))
		}
	}
	return pids
}

func awaitGone(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		expect.Eventually(t, path+" is gone", func() bool {
			_, err := os.Stat(path)
			return errors.Is(err, os.ErrNotExist)
		})
	}
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}
