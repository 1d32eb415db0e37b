package main

import (
	"context"

	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

// stack is all that a machine runs so that a Margo application runs on it.
type stack interface {
	// kinds are its processes, without those in containers.
	kinds() []kind
	// deploy runs a load, or changes it to another greeting, and returns when it
	// runs and is healthy.
	deploy(ctx context.Context, l workload, greeting string) error
	remove(ctx context.Context) error
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
		{"shims", s.Shims()},
	}
}

func (s ourStack) deploy(ctx context.Context, l workload, greeting string) error {
	repository := "apps/" + l.name
	component, err := l.component()
	if err != nil {
		return err
	}
	if err := s.Push(ctx, repository, loadRevision, component); err != nil {
		return err
	}
	_, err = s.apply(ctx, wfmsim.Deployment{
		ID: deploymentID, Name: l.name, DeviceID: plant.Device, ApplicationID: l.name,
		Components: []wfmsim.Component{{Name: l.name, Repository: s.Registry.Address() + "/" + repository, Revision: loadRevision}},
		Parameters: map[string]any{"IMAGE": s.Registry.Address() + "/" + loadImage + ":" + loadVersion, "GREETING": greeting},
	})
	return err
}

func (s ourStack) remove(ctx context.Context) error { return s.Clear(ctx) }

func (s ourStack) look(ctx context.Context) error {
	_, err := s.Control().Status(ctx)
	return err
}
