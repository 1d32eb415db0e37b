package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/margolite/margolite/runtime/compose"
)

// composeConfig prints the project as it was understood, or says what is not
// supported. It touches nothing.
func (c *cli) composeConfig(ctx context.Context, args []string) error {
	p, f := &c.project, c.composeFlags("compose config")
	c.jsonFlag(f)
	var quiet, services, images, volumes, networks bool
	f.BoolVar(&quiet, "quiet", false, "print errors only")
	short(f, "q", "quiet")
	f.BoolVar(&services, "services", false, "print the names of services only, in their order of start")
	f.BoolVar(&images, "images", false, "print the names of images only")
	f.BoolVar(&volumes, "volumes", false, "print the names of volumes only")
	f.BoolVar(&networks, "networks", false, "print the names of networks only")
	if err := c.parseNone(f, args); err != nil {
		return err
	}
	if err := c.findProject(ctx); err != nil {
		return err
	}
	cfg, err := c.load(false)
	if err != nil {
		return err
	}
	p.Logs = compose.Logging{MaxSize: cfg.Runtime.Logs.MaxSize, MaxFile: cfg.Runtime.Logs.MaxFile}
	project, err := compose.Load(ctx, p.Options)
	if err != nil {
		return err
	}
	for _, w := range project.Warnings {
		fmt.Fprintf(c.err, "warning: %s\n", w)
	}
	for _, note := range project.Notes() {
		fmt.Fprintf(c.err, "note: %s\n", note)
	}
	list := func(names []string) error {
		for _, name := range names {
			fmt.Fprintln(c.out, name)
		}
		return nil
	}
	switch {
	case quiet:
		return nil
	case services:
		return list(project.Order())
	case images:
		var refs []string
		for _, i := range project.Images() {
			refs = append(refs, i.Ref)
		}
		return list(slices.Compact(refs))
	case volumes:
		return list(slices.Sorted(maps.Keys(project.Volumes)))
	case networks:
		return list(slices.Sorted(maps.Keys(project.Networks)))
	}
	form := project.YAML
	if c.json {
		form = project.JSON
	}
	text, err := form()
	if err != nil {
		return fmt.Errorf("cannot print the project: %w", err)
	}
	if c.json {
		return c.printJSON(json.RawMessage(text))
	}
	_, err = c.out.Write(text)
	return err
}
