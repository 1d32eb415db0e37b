package main

import (
	"context"

	"github.com/margolite/margolite/agent/margo"
)

// stack is all that a machine runs so that a Margo application runs on it.
type stack interface {
	// kinds are its processes, without those in containers.
	kinds() []kind
	// deploy runs a load, or changes it to another greeting, and returns when it
	// runs and is healthy.
	deploy(ctx context.Context, l workload, greeting string) error
	remove(ctx context.Context, l workload) error
	// look asks how the load is, as an operator does.
	look(ctx context.Context) error
}

// kind is one kind of process.
type kind struct {
	name string
	pids []int
}

// ourStack is a device of ours.
type ourStack struct{ *subject }

func (s ourStack) kinds() []kind {
	return []kind{
		{"agent", []int{s.Agent()}},
		{"containerd", s.containerd()},
		{"shims", s.Shims()},
	}
}

func (s ourStack) deploy(ctx context.Context, l workload, greeting string) error {
	return s.deployAs(ctx, deploymentID, l, greeting)
}

func (s ourStack) deployAs(ctx context.Context, id string, l workload, greeting string) error {
	version, err := s.publishLoad(ctx, id, l, greeting)
	if err != nil {
		return err
	}
	if err := s.Control().Sync(ctx); err != nil {
		return err
	}
	_, err = s.Await(ctx, id, margo.Installed, version)
	return err
}

func (s ourStack) remove(ctx context.Context, _ workload) error { return s.Clear(ctx) }

func (s ourStack) look(ctx context.Context) error {
	_, err := s.Control().Status(ctx)
	return err
}
