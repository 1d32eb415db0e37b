package runtime

import (
	"context"
	"fmt"
)

// maxLooks bounds one run: a project that needs more does not converge.
const maxLooks = 2000

// goal is what a run works towards.
type goal interface {
	// want sets what is wanted of the containers found. done: nothing, and nothing is left to do.
	want(ctx context.Context) (done bool, err error)
	// carriedOut judges the failures of the plan. An error ends the run.
	carriedOut(ctx context.Context, failed []failure) error
	// idle waits for something to happen when nothing can be done now; done ends the run.
	idle(ctx context.Context) (done bool, err error)
}

// converge looks, plans, executes what can be done now, and repeats that until the goal is reached.
func (r *run) converge(ctx context.Context, g goal) error {
	for range maxLooks {
		r.e.projects.with(r.project, func(p *project) { p.stale, r.told = false, p.told })
		if err := r.find(ctx); err != nil {
			return err
		}
		done, err := g.want(ctx)
		if err != nil || done {
			return err
		}
		r.observe()
		r.plan = PlanFor(r.last, r.wanted)
		r.e.projects.noteWaits(r.project, r.plan.Waits)
		if len(r.plan.Groups) > 0 {
			err = g.carriedOut(ctx, r.carryOut(ctx))
		} else {
			done, err = g.idle(ctx)
		}
		if err != nil || done {
			return err
		}
	}
	return &Error{Code: Internal, Object: r.project, Err: fmt.Errorf("not done after %d attempts", maxLooks)}
}
