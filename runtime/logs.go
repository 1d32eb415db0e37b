package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/log"
)

// LogOptions says which part of a log is wanted.
type LogOptions struct {
	Tail   int  // last lines of each service; 0: everything that is kept; less: nothing of the past
	Follow bool // go on until ctx is done or the containers are gone
}

// Logs writes the output of one service, or with service "" of all services of
// the project with their names in front of each line.
func (e *Engine) Logs(ctx context.Context, project, service string, o LogOptions, w io.Writer) error {
	all, err := e.containers.List(e.within(ctx))
	if err != nil {
		return fail(Internal, project, err)
	}
	all = slices.DeleteFunc(all, func(c container.Container) bool {
		return c.Labels.Project != project || service != "" && c.Labels.Service != service
	})
	if len(all) == 0 {
		return &Error{Code: NotFound, Object: project, Err: errors.New("there is no such service")}
	}
	all = inOrder(current(all))
	read := func(c container.Container, w io.Writer) error {
		err := log.Read(ctx, e.containers.LogPath(c.ID), log.Options{Tail: o.Tail, Follow: o.Follow}, w)
		if errors.Is(err, fs.ErrNotExist) { // never started since the last boot
			return nil
		}
		return err
	}
	if len(all) == 1 {
		if err := read(all[0], w); err != nil {
			return fail(Internal, project, err)
		}
		return nil
	}

	names := make([]string, len(all))
	for i, c := range all {
		names[i] = fmt.Sprintf("%s-%d", c.Labels.Service, c.Labels.Number)
	}
	merged := log.NewPrefix(w, names...)
	errs := make([]error, len(all))
	one := func(i int) {
		out := merged.Writer(names[i])
		errs[i] = errors.Join(read(all[i], out), out.Close())
	}
	if !o.Follow {
		for i := range all {
			one(i)
		}
	} else {
		var readers sync.WaitGroup
		for i := range all {
			readers.Go(func() { one(i) })
		}
		readers.Wait()
	}
	if err := errors.Join(errs...); err != nil {
		return fail(Internal, project, err)
	}
	return nil
}
