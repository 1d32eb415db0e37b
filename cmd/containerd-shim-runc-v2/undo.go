package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	tasks "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/go-runc"
	"github.com/containerd/typeurl/v2"
)

// undoLimit is how long removing a failed creation may take on a slow, busy device.
const undoLimit = time.Minute

// undoing is containerd's task service, except that a failed or cancelled creation leaves nothing.
// By itself it only kills runc create, whose process then waits forever to be started.
type undoing struct{ tasks.TTRPCTaskService }

func (u undoing) Create(ctx context.Context, r *tasks.CreateTaskRequest) (*tasks.CreateTaskResponse, error) {
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	var o options.Options
	if r.Options.GetValue() != nil {
		if err := typeurl.UnmarshalTo(r.Options, &o); err != nil {
			return nil, err
		}
	}
	runtime := process.NewRunc(o.Root, r.Bundle, namespace, o.BinaryName, o.SystemdCgroup)
	runtime.Log = "" // a containerd that has started meanwhile may have removed the bundle
	_, none := os.Lstat(filepath.Join(runtime.Root, r.ID))
	created, err := u.TTRPCTaskService.Create(ctx, r)
	if err == nil || !errors.Is(none, fs.ErrNotExist) { // a container that runc already knew was not created here, and may run
		return created, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	if undoErr := runtime.Delete(ctx, r.ID, &runc.DeleteOpts{Force: true}); undoErr != nil {
		err = errors.Join(err, fmt.Errorf("cannot remove what it left: %w", undoErr))
	}
	return nil, err
}
