package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
)

// runHooks runs the post_start commands once per process. The supervisor tolerates failures.
func (r *run) runHooks(ctx context.Context, s Step) error {
	own, err := r.e.containers.ListIDs(ctx, []string{s.Container}) // the process may have just started
	if err != nil {
		return fail(Internal, s.Replica.Service, err)
	}
	if len(own) == 0 || own[0].Pid == 0 {
		return nil // it ended, as the next look finds
	}
	c := own[0]
	life := lifeOf(c.Pid)
	for _, hook := range c.Labels.PostStart {
		if err := runHook(ctx, r.e.containers, c.ID, hook); err != nil {
			if r.wanted.AsRecorded && ctx.Err() == nil {
				r.e.o.Logger.Warn("hook failed", "project", r.project, "service", s.Replica.Service, "error", err)
				continue
			}
			if lifeOf(c.Pid) != life {
				return nil
			}
			return fail(StartFailed, s.Replica.Service, err)
		}
	}
	return r.e.hooked.note(c.ID, life)
}

func runHook(ctx context.Context, containers *container.Containers, id string, h compose.Hook) error {
	var out ending
	x := container.HookExec(h)
	x.Stdout, x.Stderr = &out, &out
	code, err := containers.Exec(ctx, id, x)
	name := strings.Join(h.Command[:min(1, len(h.Command))], "") // arguments may hold a password
	if err == nil && code != 0 {
		err = fmt.Errorf("it ended with code %d%s", code, quote(string(out)))
	}
	if err != nil {
		return fmt.Errorf("cannot run post_start hook %.100q: %w", name, err)
	}
	return nil
}

// hookRecords is a directory that says which process had its hooks. A reboot clears it.
type hookRecords string

func (h hookRecords) of(id string) string { return filepath.Join(string(h), id) }

func (h hookRecords) note(id, life string) error {
	err := os.MkdirAll(string(h), 0o711)
	if err == nil {
		err = os.WriteFile(h.of(id), []byte(life), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot record the hooks of container %s: %w", id, err)
	}
	return nil
}

func (h hookRecords) has(id string, pid int) bool {
	noted, err := os.ReadFile(h.of(id))
	return err == nil && string(noted) == lifeOf(pid)
}

func (r *run) deleteContainer(ctx context.Context, id string) error {
	if err := r.e.containers.Delete(ctx, id); err != nil {
		return err
	}
	if err := os.Remove(r.e.hooked.of(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot delete the hook record of container %s: %w", id, err)
	}
	return nil
}

// quote formats output for the end of an error text.
func quote(output string) string {
	text := strings.TrimSpace(strings.ToValidUTF8(output, "?"))
	if text == "" {
		return " without any output"
	}
	if len(text) > lastBytes {
		text = "..." + strings.ToValidUTF8(text[len(text)-lastBytes:], "")
	}
	return "; its last output:\n" + text
}
