// Command containerd-shim-runc-v2 is containerd's runc shim, built from containerd's own packages
// with only the task service. One shim serves all containers with the same annotation
// io.containerd.runc.v2.group. It keeps a container's output as Docker does if its task asks for
// that, see [log.URI]. With nothing to do it ends.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/version"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
)

func main() {
	unserved := time.AfterFunc(idleTimeout, leave)
	action := os.Args[len(os.Args)-1]
	if action == "start" || action == "delete" {
		unserved.Stop()
	}
	if group := os.Getenv(groupEnv); group != "" && action == "start" {
		if err := enterGroup("/sys/fs/cgroup", group); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			unserved.Stop()
			return newService(ic)
		},
	})
	version.Revision = "margolite" // distinguishes it from containerd's in -v
	shim.RunShim(context.Background(), starter{manager.NewShimManager("io.containerd.runc.v2")})
}

// leave ends a shim that does not serve yet: it may be opening its log, which nothing else opens if
// containerd gave up the shim meanwhile.
func leave() {
	_ = remove(ownSockets())
	os.Exit(1)
}

func newService(ic *plugin.InitContext) (any, error) {
	events, err := ic.GetByID(plugins.EventPlugin, "publisher")
	if err != nil {
		return nil, err
	}
	ending, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
	if err != nil {
		return nil, err
	}
	sockets := ownSockets()
	ending.(shutdown.Service).RegisterCallback(func(context.Context) error { return remove(sockets) })
	s := newTasks(nil, ending.(shutdown.Service).Shutdown)
	direct, err := task.NewTaskService(ic.Context, publisher{events.(shim.Publisher), s}, ending.(shutdown.Service))
	s.TTRPCTaskService = undoing{direct}
	return s, err
}
