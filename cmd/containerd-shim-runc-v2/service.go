package main

import (
	"context"
	"sync"
	"time"

	tasks "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"

	"github.com/margolite/margolite/runtime/log"
)

// drainTimeout is how long the deletion of a task waits for its last lines, which
// are on their way within this process.
const drainTimeout = 2 * time.Second

// service is containerd's task service that also keeps logs.
type service struct {
	tasks.TTRPCTaskService

	mu   sync.Mutex
	logs map[string]*output // by container
}

// RegisterTTRPC makes it the service of the shim.
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	tasks.RegisterTTRPCTaskService(server, s)
	return nil
}

// Create gives the task pipes that this process reads, where it asks for a log.
func (s *service) Create(ctx context.Context, r *tasks.CreateTaskRequest) (*tasks.CreateTaskResponse, error) {
	path, keep, ours := log.ParseURI(r.Stdout)
	if !ours && r.Terminal {
		// Other shims take no URI for the output of a terminal, and do not look at
		// its standard error, which it has not.
		path, keep, ours = log.ParseURI(r.Stderr)
	}
	if !ours || r.Checkpoint != "" {
		return s.TTRPCTaskService.Create(ctx, r)
	}
	out, err := newOutput(r.Bundle, r.Terminal)
	if err != nil {
		return nil, err
	}
	defer out.unlink()
	r.Stdout, r.Stderr = out.paths()
	kept := log.NewWriter(path, keep)
	_ = kept.Open() // or with the first line; a container runs without a log, too
	created, err := s.TTRPCTaskService.Create(ctx, r)
	if err != nil {
		out.close()
		_ = kept.Close()
		return nil, err
	}
	// The other ends are open: from here on their end is that of the output.
	out.keep(kept)
	s.mu.Lock()
	s.logs[r.ID] = out
	s.mu.Unlock()
	return created, nil
}

// Delete returns when the log of the task is whole.
func (s *service) Delete(ctx context.Context, r *tasks.DeleteRequest) (*tasks.DeleteResponse, error) {
	deleted, err := s.TTRPCTaskService.Delete(ctx, r)
	if err != nil || r.ExecID != "" {
		return deleted, err
	}
	s.mu.Lock()
	out := s.logs[r.ID]
	delete(s.logs, r.ID)
	s.mu.Unlock()
	if out != nil {
		out.wait(drainTimeout)
	}
	return deleted, nil
}
