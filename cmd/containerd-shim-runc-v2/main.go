// Command containerd-shim-runc-v2 is containerd's runc shim, built from containerd's own packages with nothing but the
// task service. One shim serves all containers that carry the same annotation io.containerd.runc.v2.group.
package main

import (
	"context"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task/plugin" // the task service
	"github.com/containerd/containerd/v2/pkg/shim"
)

func main() {
	shim.RunShim(context.Background(), manager.NewShimManager("io.containerd.runc.v2"))
}
