package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
)

func (c *cli) prune(f *command.Flags) command.Action {
	c.jsonFlag(f)
	var images, volumes, dry, yes bool
	f.BoolVar(&images, "images", false, "remove images that no container and no deployment needs; the default")
	f.BoolVar(&volumes, "volumes", false, "remove named volumes that no container and no deployment needs, with their content")
	f.BoolVar(&dry, "dry-run", false, "show what would be removed, remove nothing")
	yesFlag(f, &yes)
	return func(ctx context.Context, _ []string) error {
		return c.removeUnneeded(ctx, images || !volumes, volumes, dry, yes)
	}
}

func (c *cli) removeUnneeded(ctx context.Context, images, volumes, dry, yes bool) error {
	client, cfg, err := c.client()
	if err != nil {
		return err
	}
	_, noRecords := os.Stat(databaseFile(cfg)) // deployments of an agent that is not running
	if err := client.Ping(ctx); errors.Is(err, control.ErrNotRunning) && !errors.Is(noRecords, fs.ErrNotExist) {
		return fmt.Errorf("cannot find out what deployments need: %w", err)
	}
	return c.withProjects(ctx, func(w *reached) error {
		all, err := w.Unneeded(ctx)
		if err != nil {
			return err
		}
		kept := 0
		items := slices.DeleteFunc(all, func(u control.Unneeded) bool {
			other := u.Kind == control.UnneededImage && !images || u.Kind == control.UnneededVolume && !volumes
			if other && u.Kind == control.UnneededVolume {
				kept++
			}
			return other
		})
		if c.json && dry {
			return c.printJSON(append([]control.Unneeded{}, items...))
		}
		if !c.json {
			c.printUnneeded(items)
		}
		if kept > 0 {
			fmt.Fprintf(c.err, "%s that nothing needs stay; --volumes removes them\n", plural(kept, "volume"))
		}
		if dry || len(items) == 0 && !c.json {
			return nil
		}
		if !yes && !c.agreed(ctx, "Remove them?") {
			err := errors.New("nothing was removed")
			if !isTerminal(c.in) {
				return command.Hint(err, "repeat this with --yes")
			}
			return err
		}
		removed, err := w.Prune(ctx, items)
		if err != nil {
			return err
		}
		if c.json {
			return c.printJSON(append([]control.Unneeded{}, removed...))
		}
		later := 0
		for _, u := range removed {
			if u.Later {
				later++
			}
		}
		fmt.Fprintf(c.out, "removed %d of %d\n", len(removed)-later, len(items))
		if later > 0 {
			fmt.Fprintf(c.out, "%s will be removed once the current downloads have ended\n", plural(later, "image"))
		}
		return nil
	})
}

func (c *cli) printUnneeded(items []control.Unneeded) {
	if len(items) == 0 {
		fmt.Fprintln(c.out, "There is nothing to remove.")
		return
	}
	var sum int64
	bound := "at most"
	w := table(c.out)
	for _, u := range items {
		name := imageOf(u.Name)
		if u.Project != "" {
			name = u.Project + "/" + u.Name
		}
		size := bytesIn(u.Bytes)
		if u.Error != "" {
			size, bound = "at least "+size+": "+line(u.Error), "or more"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", u.Kind, line(name), size)
		sum += u.Bytes
	}
	w.Flush()
	fmt.Fprintf(c.out, "%s, %s %s\n", plural(len(items), "object"), bytesIn(sum), bound)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if stem, ok := strings.CutSuffix(what, "y"); ok {
		what = stem + "ie"
	}
	return fmt.Sprintf("%d %ss", n, what)
}
