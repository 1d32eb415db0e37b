package runtime

import (
	"context"
	"fmt"
)

// maxLooks bounds one run: a project that needs more does not converge.
const maxLooks = 2000

// goal is what a run leads to, and what is to be done about what it finds on the way.
type goal interface {
	// want sets what is wanted, given the containers of the project as they were found.
	// done: nothing is, and nothing is left to be done. An error ends the run.
	want(ctx context.Context) (done bool, err error)
	// carriedOut looks at what became of the plan. An error ends the run.
	carriedOut(ctx context.Context, failed []failure) error
	// idle is called when there is nothing to do now. done: that is the end; else it has
	// waited for something to happen.
	idle(ctx context.Context) (done bool, err error)
}

// converge brings the project to a goal: it looks at what there is, plans, does what can
// be done now, and looks again. Each step is safe to repeat, so it does not matter where
// a former run ended.
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
