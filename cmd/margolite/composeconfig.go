package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/runtime/compose"
)

// composeConfig prints the interpreted project, or what is unsupported. It changes nothing.
func (c *cli) composeConfig(f *command.Flags) command.Action {
	c.composeFlags(f)
	c.jsonFlag(f)
	var quiet, services, images, volumes, networks bool
	f.BoolVar(&quiet, "quiet,q", false, "print errors only")
	f.BoolVar(&services, "services", false, "print the names of services only, in their order of start")
	f.BoolVar(&images, "images", false, "print the names of images only")
	f.BoolVar(&volumes, "volumes", false, "print the names of volumes only")
	f.BoolVar(&networks, "networks", false, "print the names of networks only")
	return func(ctx context.Context, _ []string) error {
		project, err := c.loadProject(ctx)
		if err != nil {
			return err
		}
		switch {
		case quiet:
			return nil
		case services:
			return c.list(project.Order())
		case images:
			var refs []string
			for _, i := range project.Images() {
				refs = append(refs, i.Ref)
			}
			return c.list(slices.Compact(refs))
		case volumes:
			return c.list(slices.Sorted(maps.Keys(project.Volumes)))
		case networks:
			return c.list(slices.Sorted(maps.Keys(project.Networks)))
		}
		tree, err := project.Tree()
		switch {
		case err != nil:
			return fmt.Errorf("cannot print the project: %w", err)
		case c.json:
			return c.printJSON(tree)
		}
		return c.printYAML(tree)
	}
}

func (c *cli) loadProject(ctx context.Context) (*compose.Project, error) {
	if err := c.findProject(ctx); err != nil {
		return nil, err
	}
	cfg, err := c.load(false)
	if err != nil {
		return nil, err
	}
	c.project.Logs = compose.Logging{MaxSize: cfg.Runtime.Logs.MaxSize, MaxFile: cfg.Runtime.Logs.MaxFile}
	project, err := compose.Load(ctx, c.project.Options)
	if err != nil {
		return nil, err
	}
	for _, w := range project.Warnings {
		fmt.Fprintf(c.err, "warning: %s\n", w)
	}
	for _, note := range project.Notes() {
		fmt.Fprintf(c.err, "note: %s\n", note)
	}
	return project, nil
}

func (c *cli) list(names []string) error {
	for _, name := range names {
		fmt.Fprintln(c.out, name)
	}
	return nil
}
