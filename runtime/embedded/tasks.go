package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/events/exchange"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/runtime"
	runtimev2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
)

// longestSocketDir leaves room for a slash and a hash in the 107 bytes of a unix socket's address.
const longestSocketDir = 42

// tasks is containerd's task manager, with our shim as the default runtime.
type tasks struct {
	*runtimev2.TaskManager
	shims   *shims
	records *records
}

// Create starts a shim, or joins the one of the container's group, and creates the task in it.
func (t *tasks) Create(ctx context.Context, id string, o runtime.CreateOpts) (runtime.Task, error) {
	if o.Runtime == defaults.DefaultRuntime {
		shim, err := t.shims.path(ctx)
		if err != nil {
			return nil, fmt.Errorf("cannot start containers: %w", err)
		}
		o.Runtime = shim
	}
	return t.TaskManager.Create(ctx, id, o)
}

// loadTasks reconnects to the shims whose bundles are under State.
func loadTasks(ic *plugin.InitContext, o Options, own *shims) (*tasks, error) {
	db, err := database(ic)
	if err != nil {
		return nil, err
	}
	events, err := ic.GetByID(plugins.EventPlugin, "exchange")
	if err != nil {
		return nil, err
	}
	root, state := ic.Properties[plugins.PropertyRootDir], ic.Properties[plugins.PropertyStateDir]
	for _, dir := range []string{root, state} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, err
		}
	}
	if shim, err := own.path(ic.Context); err == nil {
		if err := moveShims(state, shim, o.Logger); err != nil {
			return nil, err
		}
	}

	known := &records{Store: metadata.NewContainerStore(db)}
	shims, err := runtimev2.NewShimManager(&runtimev2.ManagerConfig{
		Store:        known,
		SandboxStore: metadata.NewSandboxStore(db),
		Events:       events.(*exchange.Exchange),
		Address:      ic.Properties[plugins.PropertyGRPCAddress],
		TTRPCAddress: ic.Properties[plugins.PropertyTTRPCAddress],
		SocketDir:    shimSocketDir(o.State),
	})
	if err != nil {
		return nil, err
	}
	manager, err := runtimev2.NewTaskManager(ic.Context, root, state, shims)
	if err != nil {
		return nil, err
	}
	return &tasks{manager, own, known}, nil
}

// shimSocketDir is where new shims listen; a running shim keeps its address.
func shimSocketDir(state string) string {
	if dir := filepath.Join(state, "s"); len(dir) <= longestSocketDir {
		return dir
	}
	return filepath.Join(defaults.DefaultStateDir, "s")
}

// moveShims records the present shim in each bundle whose own is gone, as after an upgrade. containerd
// would consider such a container lost and delete its bundle under the running workload.
func moveShims(state, shim string, log *slog.Logger) error {
	bundles, err := filepath.Glob(filepath.Join(state, "*", "*", "shim-binary-path"))
	if err != nil {
		return err
	}
	for _, file := range bundles {
		path, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if _, err := os.Stat(string(path)); !os.IsNotExist(err) {
			continue
		}
		if err := os.WriteFile(file, []byte(shim), 0o600); err != nil {
			return fmt.Errorf("cannot record the new path of the shim: %w", err)
		}
		log.Info("shim moved", "container", filepath.Base(filepath.Dir(file)), "from", string(path), "to", shim)
	}
	return nil
}
