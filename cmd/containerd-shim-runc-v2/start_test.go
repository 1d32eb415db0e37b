package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
)

// newShims stands in for containerd's manager of shims.
type newShims struct {
	shim.Shim
	started int
}

func (n *newShims) Start(context.Context, *bootstrap.BootstrapParams) (*bootstrap.BootstrapResult, error) {
	n.started++
	return &bootstrap.BootstrapResult{}, nil
}

func TestAContainerJoinsTheShimThatListens(t *testing.T) {
	for name, c := range map[string]struct {
		waiting int // connections that are not accepted yet; there is room for one
		killed  bool
		started int
	}{
		"at once":              {},
		"before it accepts":    {waiting: 1},
		"unless it was killed": {killed: true, started: 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := containerdtest.Dir(t)
			bundle := filepath.Join(dir, "bundle")
			err := errors.Join(os.Mkdir(bundle, 0o700),
				os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"annotations": {"io.containerd.runc.v2.group": "shop"}}`), 0o600))
			check(t, err)
			t.Chdir(bundle)
			ctx := namespaces.WithNamespace(t.Context(), "test")
			address := expect.Value(shim.CreateSocketAddress(ctx, dir, "containerd.sock", "shop", false))(t)
			path := strings.TrimPrefix(address, "unix://")
			socket := expect.Value(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
			listener := os.NewFile(uintptr(socket), path)
			defer listener.Close()
			check(t, errors.Join(unix.Bind(socket, &unix.SockaddrUnix{Name: path}), unix.Listen(socket, 0)))
			for range c.waiting {
				conn := expect.Value(net.Dial("unix", path))(t)
				defer conn.Close()
			}
			if c.killed {
				_ = listener.Close()
			}
			var others newShims
			got := expect.Value(starter{&others}.Start(ctx, &bootstrap.BootstrapParams{InstanceID: "web", SocketDir: &dir, ContainerdGrpcAddress: "containerd.sock"}))(t)
			if others.started != c.started || c.started == 0 && got.GetAddress() != address {
				t.Errorf("%d shims are started, and the address is %q, want %d and %q", others.started, got.GetAddress(), c.started, address)
			}
		})
	}
}
