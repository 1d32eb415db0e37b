package embedded

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	// containerd's own plugins; linking one registers it. Left out: CRI, NRI, transfer, streaming,
	// sandboxes, mount manager (text/template), restart monitor, metrics, tracing.
	_ "github.com/containerd/containerd/v2/plugins/content/local/plugin"
	_ "github.com/containerd/containerd/v2/plugins/events"
	_ "github.com/containerd/containerd/v2/plugins/leases"
	_ "github.com/containerd/containerd/v2/plugins/services/containers"
	_ "github.com/containerd/containerd/v2/plugins/services/content"
	_ "github.com/containerd/containerd/v2/plugins/services/diff"
	_ "github.com/containerd/containerd/v2/plugins/services/events"
	_ "github.com/containerd/containerd/v2/plugins/services/images"
	_ "github.com/containerd/containerd/v2/plugins/services/introspection"
	_ "github.com/containerd/containerd/v2/plugins/services/leases"
	_ "github.com/containerd/containerd/v2/plugins/services/namespaces"
	_ "github.com/containerd/containerd/v2/plugins/services/snapshots"
	_ "github.com/containerd/containerd/v2/plugins/services/tasks"
	_ "github.com/containerd/containerd/v2/plugins/services/version"
	_ "github.com/containerd/containerd/v2/plugins/services/warning"
	_ "github.com/containerd/containerd/v2/plugins/snapshots/native/plugin"
)

const nativeSnapshotter = "native"

// initPlugins starts containerd's plugins in the order of their dependencies. None is optional.
func (s *Server) initPlugins(ctx context.Context, o Options) error {
	for _, r := range s.registrations(o).Graph(nil) {
		ic := plugin.NewContext(ctx, s.plugins, map[string]string{
			plugins.PropertyRootDir:      filepath.Join(o.Root, r.URI()),
			plugins.PropertyStateDir:     filepath.Join(o.State, r.URI()),
			plugins.PropertyGRPCAddress:  s.address,
			plugins.PropertyTTRPCAddress: ttrpcAddress(s.address),
		})
		ic.Config = r.Config
		p := r.Init(ic)
		if err := s.plugins.Add(p); err != nil {
			return fmt.Errorf("cannot add containerd plugin: %w", err)
		}
		if err := p.Err(); err != nil {
			return fmt.Errorf("cannot start containerd plugin %s: %w", r.URI(), err)
		}
	}
	return nil
}

// registrations are the linked plugins and our replacements.
func (s *Server) registrations(o Options) plugin.Registry {
	ours := plugin.Registry{}.
		Register(&plugin.Registration{
			Type:     plugins.MetadataPlugin,
			ID:       "bolt",
			Requires: []plugin.Type{plugins.ContentPlugin, plugins.EventPlugin, plugins.SnapshotPlugin},
			InitFn:   func(ic *plugin.InitContext) (any, error) { return openMetadata(ic, o) },
		}).
		Register(&plugin.Registration{
			Type:     plugins.GCPlugin,
			ID:       "scheduler",
			Requires: []plugin.Type{plugins.MetadataPlugin},
			InitFn:   func(ic *plugin.InitContext) (any, error) { return s.startCollector(ic, o.Root, o.Logger) },
		}).
		Register(&plugin.Registration{
			Type:     plugins.DiffPlugin,
			ID:       "walking",
			Requires: []plugin.Type{plugins.MetadataPlugin},
			InitFn:   openApplier,
		}).
		Register(&plugin.Registration{
			Type:     plugins.RuntimePluginV2,
			ID:       "task",
			Requires: []plugin.Type{plugins.EventPlugin, plugins.MetadataPlugin},
			InitFn:   func(ic *plugin.InitContext) (any, error) { return loadTasks(ic, o, s.shims) },
		})
	if s.snapshotter == defaults.DefaultSnapshotter {
		ours = ours.Register(&plugin.Registration{
			Type:   plugins.SnapshotPlugin,
			ID:     defaults.DefaultSnapshotter,
			InitFn: openOverlay,
		})
	}
	theirs := registry.Graph(func(r *plugin.Registration) bool {
		return r.Type == plugins.RuntimePluginV2 || r.Type == plugins.ShimPlugin
	})
	for i := range theirs {
		ours = ours.Register(&theirs[i])
	}
	return ours
}
