// Package containerdtest gives tests a real containerd, embedded or external, the shim built from this repository,
// and small images in a registry. Its tests need root; without it they are skipped.
package containerdtest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	official "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/embedded"
	"github.com/margolite/margolite/test/expect"
)

// Namespace is where the tests keep their containers.
const Namespace = "margo-test"

// Context carries Namespace, and ends with the test.
func Context(t testing.TB) context.Context { return within(t.Context()) }

func within(ctx context.Context) context.Context { return namespaces.WithNamespace(ctx, Namespace) }

// Backend is one of the two kinds of containerd.
type Backend struct {
	Name  string
	Start func(testing.TB) containerd.Client
	// OtherShim says that the shim is not that of this repository.
	OtherShim bool
}

// LogKeeper is the program that keeps what containers print; "" where the shim does.
func (b Backend) LogKeeper(t testing.TB) string {
	if !b.OtherShim {
		return ""
	}
	return Init(t)
}

// Backends are all kinds of containerd, for tests that must pass with each.
func Backends() []Backend {
	return []Backend{{"embedded", Embedded, false}, {"external", External, true}}
}

// OnEach runs a test with each kind of containerd, with the system's in make test-all alone.
func OnEach(t *testing.T, test func(t *testing.T, backend Backend)) {
	for _, backend := range Backends() {
		t.Run(backend.Name, func(t *testing.T) {
			if testing.Short() && backend.OtherShim {
				t.Skip("in make test-all: the system's containerd")
			}
			test(t, backend)
		})
	}
}

// Embedded starts a containerd in this process and ends it, with everything that runs in it, after the test.
func Embedded(t testing.TB) containerd.Client {
	needRoot(t)
	dir := Dir(t)
	server := expect.Value(embedded.Start(t.Context(), embedded.Options{
		Root:   filepath.Join(dir, "root"),
		State:  filepath.Join(dir, "state"),
		Shim:   Shim(t),
		Logger: Logger(t),
	}))(t)
	t.Cleanup(func() { expect.OK(t, server.Close()) })
	client := expect.Value(server.Client(t.Context(), Namespace))(t)
	cleanup(t, client)
	return client
}

// External starts the containerd that is installed on this machine with directories of its own.
func External(t testing.TB) containerd.Client {
	needRoot(t)
	dir := Dir(t)
	config := filepath.Join(dir, "config.toml")
	check(t, os.WriteFile(config, []byte("version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"), 0o600))
	program, err := exec.LookPath("containerd")
	if err != nil {
		t.Skip("containerd is not installed")
	}
	socket := filepath.Join(dir, "containerd.sock")
	cmd := exec.Command(program, "--config", config, "--address", socket,
		"--root", filepath.Join(dir, "root"), "--state", filepath.Join(dir, "state"))
	cmd.Stderr = logWriter{t}
	check(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client := expect.Value(containerd.Connect(ctx, socket, Namespace))(t)
	cleanup(t, client)
	return client
}

// Official speaks to the same containerd over its socket, also where what is tested does not.
func Official(t testing.TB, of containerd.Client) *official.Client {
	t.Helper()
	client := expect.Value(official.New(containerd.Address(of), official.WithDefaultNamespace(Namespace)))(t)
	t.Cleanup(func() { client.Close() })
	return client
}

// Dir is a directory with a path so short that sockets fit into it.
func Dir(t testing.TB) string {
	dir := expect.Value(os.MkdirTemp("/run", "mt"))(t)
	t.Cleanup(func() { expect.OK(t, os.RemoveAll(dir)) })
	return dir
}

// program builds one of this repository's programs.
func program(name, tags string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		_, here, _, _ := runtime.Caller(0)
		repository := filepath.Join(filepath.Dir(here), "..", "..")
		checkout := digest.FromString(repository).Encoded()[:12] // others may have other programs
		path := filepath.Join(os.TempDir(), "margolite-test-"+checkout, name)
		build := exec.Command("go", "build", "-tags", tags, "-trimpath", "-ldflags=-s -w", "-o", path, "./cmd/"+name)
		build.Dir = repository
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", errors.New(string(out))
		}
		return path, nil
	})
}

var (
	shim        = program("containerd-shim-runc-v2", "no_grpc")
	initProgram = program("margolite-init", "")
)

// Shim is the path of the runc shim, built from this repository once per test program.
func Shim(t testing.TB) string { return expect.Value(shim())(t) }

// Init is the path of margolite-init, built likewise.
func Init(t testing.TB) string { return expect.Value(initProgram())(t) }

func needRoot(t testing.TB) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// cleanup ends everything in Namespace when the test is over, so that no mount keeps the directories busy.
func cleanup(t testing.TB, of containerd.Client) {
	client := Official(t, of)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(within(context.Background()), 30*time.Second)
		defer cancel()
		defer of.Close()
		containers, err := client.Containers(ctx)
		expect.Error(t, err, nil, "cannot list containers left by the test")
		for _, c := range containers {
			if task, err := c.Task(ctx, nil); err == nil {
				if _, err := task.Delete(ctx, official.WithProcessKill); err != nil && !errdefs.IsNotFound(err) {
					t.Errorf("cannot end task left by the test: %v", err)
				}
			}
			if err := c.Delete(ctx, official.WithSnapshotCleanup); err != nil && !errdefs.IsNotFound(err) {
				t.Errorf("cannot delete container left by the test: %v", err)
			}
		}
	})
}

var check = expect.Check
