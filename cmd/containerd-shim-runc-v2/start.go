package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/v2/pkg/shim"
	"golang.org/x/sys/unix"
)

// groupKey is the annotation with the group's name of containers that share a shim.
const groupKey = "io.containerd.runc.v2.group"

// starter is containerd's manager of shims. By itself it gives up a shim that it cannot reach
// within 100 ms, and starts another at the same address. A restarting containerd would then ask the
// second one about the containers of both.
type starter struct{ shim.Shim }

// Start returns the address of the shim that listens for the group of a container, and starts one
// if necessary. The working directory is the container's bundle.
func (s starter) Start(ctx context.Context, p *bootstrap.BootstrapParams) (*bootstrap.BootstrapResult, error) {
	var spec struct{ Annotations map[string]string }
	text, err := os.ReadFile("config.json")
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read spec of container: %w", err)
	}
	group := cmp.Or(spec.Annotations[groupKey], p.GetInstanceID())
	address, err := shim.CreateSocketAddress(ctx, p.GetSocketDir(), p.GetContainerdGrpcAddress(), group, false)
	if err != nil {
		return nil, err
	}
	// One at a time: two that find the socket of a killed shim would each replace it. The wait ends
	// when containerd gives up and kills this process.
	bundles, err := os.Open("..")
	if err != nil {
		return nil, err
	}
	defer bundles.Close()
	if err := unix.Flock(int(bundles.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("cannot lock directory of bundles: %w", err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
	switch {
	case err == nil:
		_ = conn.Close()
	case errors.Is(err, unix.EAGAIN): // it listens, and has many connections to accept
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return s.Shim.Start(ctx, p)
	default:
		return nil, fmt.Errorf("cannot connect to shim of group %s: %w", group, err)
	}
	return &bootstrap.BootstrapResult{Version: 3, Protocol: "ttrpc", Address: address}, nil
}
