package faults

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/neighbours"
)

const (
	// fewHogs is the most that there are at the same time.
	fewHogs = 3
	// hogPatience bounds the wait for what has to happen beside hogs, or for their end.
	hogPatience = 3 * time.Minute
	// answersIn is how long a status may take beside them.
	answersIn = 10 * time.Second
)

// hogs are those that can be together with others. A WFM that answers badly is among
// the troubles around.
func (r *Rig) hogs() []neighbours.Hog {
	return slices.DeleteFunc(neighbours.Hogs(), func(h neighbours.Hog) bool {
		return h.Name == "nobody" || strings.Contains(h.Name, "WFM")
	})
}

// Hogs has hogs begin and end at any time, with changes of the neighbours and kills
// of the agent meanwhile. Neighbours are served beside the hogs, and what is not
// changed is not disturbed.
func (r *Rig) Hogs(n int) {
	r.T.Helper()
	for range n {
		r.besideHogs(r.drawHogs())
	}
}

// drawHogs draws a few hogs, and of registries only one: all hogs have the same.
func (r *Rig) drawHogs() []neighbours.Hog {
	all, registry := r.hogs(), false
	r.Rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	all = slices.DeleteFunc(all, func(h neighbours.Hog) bool {
		another := registry && strings.Contains(h.Name, "registry")
		registry = registry || strings.Contains(h.Name, "registry")
		return another
	})
	return all[:1+r.Rand.IntN(fewHogs)]
}

func (r *Rig) besideHogs(all []neighbours.Hog) {
	r.T.Helper()
	undisturbed := r.Undisturbed()
	type begun struct {
		name string
		neighbours.Started
	}
	var some []begun
	for _, h := range all {
		r.T.Logf("%s begins", h.Name)
		h := begun{h.Name, h.Begin(r.site)}
		some = append(some, h)
		if h.Effect != nil {
			r.within(func(ctx context.Context) error { return h.Effect(ctx) }, "%s has no effect", h.name)
		}
		r.disturb()
		undisturbed()
	}
	r.Change()
	r.within(r.serves, "neighbours are not served")
	r.Rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	for _, h := range some {
		r.disturb()
		r.T.Logf("%s ends", h.name)
		r.within(h.End, "%s does not end", h.name)
		undisturbed()
	}
	ctx := r.T.Context()
	check(r.T, r.eventually(ctx, func() error { return r.Control().Sync(ctx) }))
	r.Converge()
	undisturbed()
}

// disturb changes something, or kills the agent, or does nothing.
func (r *Rig) disturb() {
	r.T.Helper()
	switch r.Rand.IntN(4) {
	case 0:
		r.Change()
	case 1:
		r.KillAgent()
	}
	r.pause(longest)
}

// serves says what the device lacks for deployments to be as the WFM wants them, and
// whether the agent answers in time.
func (r *Rig) serves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answersIn)
	defer cancel()
	s, err := r.Control().Status(ctx)
	if err != nil {
		return err
	}
	return r.deployed(s)
}

// within repeats what has to succeed beside hogs. An agent that ends by itself then
// is a violation.
func (r *Rig) within(try func(context.Context) error, format string, arguments ...any) {
	r.T.Helper()
	ctx, cancel := context.WithTimeout(r.T.Context(), hogPatience)
	defer cancel()
	err := soon(ctx, hogPatience, func() error {
		select {
		case <-r.Done():
			return errors.New("the agent has ended by itself")
		default:
			return try(ctx)
		}
	})
	if err != nil {
		r.T.Fatalf("seed %d: violated: "+format+": %v", append(append([]any{r.options.Seed}, arguments...), err)...)
	}
}

// deployed says which deployment is not as the WFM wants it.
func (r *Rig) deployed(s *control.Status) error {
	for _, d := range r.deployments {
		if err := r.settled(d, s); err != nil {
			return err
		}
	}
	return nil
}
