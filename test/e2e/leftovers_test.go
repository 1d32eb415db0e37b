package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

// leavesNothing removes everything from the device and compares the machine with
// what it was before. Every test ends with it.
func (r *rig) leavesNothing() {
	r.t.Helper()
	if r.before == nil {
		return // no agent ever ran
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	_ = r.WFM.Start("") // an error says that it is there
	if !r.Running() {
		expect.Check(r.t, r.Run(ctx))
	}
	expect.Check(r.t, r.Clear(ctx))
	expect.Check(r.t, plant.Eventually(ctx, func() error { return r.removeProjects(ctx) }))
	expect.Check(r.t, r.Quiet(ctx))
	r.isAsBefore(ctx)
}

// isAsBefore fails the test for what is left on the machine. Some things go a moment
// after the call that removed them: containerd collects what nobody refers to.
func (r *rig) isAsBefore(ctx context.Context) {
	r.t.Helper()
	expect.Error(r.t, plant.Eventually(ctx, r.nothingLeft), nil, "not everything is as it was")
}

// removeProjects removes what no deployment brought, with its images.
func (r *rig) removeProjects(ctx context.Context) error {
	services, err := r.Control().ComposePs(ctx, "")
	if err != nil {
		return err
	}
	for _, s := range services {
		if err := r.Control().ComposeDown(ctx, control.DownRequest{Project: s.Project}); err != nil {
			return err
		}
	}
	unneeded, err := r.Control().Unneeded(ctx)
	if err != nil {
		return err
	}
	images := slices.DeleteFunc(unneeded, func(u control.Unneeded) bool { return u.Kind != control.UnneededImage })
	removed, err := r.Control().Prune(ctx, images)
	if err == nil && slices.ContainsFunc(removed, func(u control.Unneeded) bool { return u.Later }) {
		err = errors.New("images are still being brought onto the device")
	}
	return err
}

// nothingLeft says in what the machine differs from before, or nil. Images are no
// difference where they are to stay.
func (r *rig) nothingLeft() error {
	images := "left: file " + filepath.Join(r.StateDir(), "containerd") + "/"
	var left []error
	for _, line := range r.Left(r.t, r.before) {
		if !r.keepsImages || !strings.HasPrefix(line, images) {
			left = append(left, errors.New(line))
		}
	}
	return errors.Join(left...)
}
