package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
)

const shimName = "containerd-shim-runc-v2"

// program is one program of one target.
type program struct {
	Target     string // as linux-armv7
	Name       string
	Bytes      int64
	Compressed int64 // by xz -9, where there is an xz
}

// programNames are the columns of the table of programs, and the file of each in a
// target.
var programNames = []struct{ name, file string }{
	{"margolite", "margolite"},
	{"shim", shimName},
}

// measurePrograms measures every program of every target in dist.
func measurePrograms(ctx context.Context, dist string) ([]program, error) {
	targets, err := os.ReadDir(dist)
	if err != nil {
		return nil, fmt.Errorf("cannot find programs, run make cross: %w", err)
	}
	xz, err := exec.LookPath("xz")
	if err != nil {
		say("xz is not installed: compressed sizes are left out")
	}
	var all []program
	var files []string
	for _, t := range targets {
		for _, p := range programNames {
			file := filepath.Join(dist, t.Name(), p.file)
			info, err := os.Stat(file)
			if errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("target %s is not complete, run make cross: %w", t.Name(), err)
			}
			if err != nil {
				return nil, err
			}
			all = append(all, program{Target: t.Name(), Name: p.name, Bytes: info.Size()})
			files = append(files, file)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no programs in %s, run make cross", dist)
	}
	if xz == "" {
		return all, nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(runtime.NumCPU(), 4)) // one takes up to 674 MiB
	for i, file := range files {
		g.Go(func() (err error) {
			all[i].Compressed, err = compressed(ctx, xz, file)
			return err
		})
	}
	return all, g.Wait()
}

// compressed is how many bytes xz -9 makes of a file.
func compressed(ctx context.Context, xz, file string) (int64, error) {
	cmd := exec.CommandContext(ctx, xz, "-9", "--threads=1", "--stdout", "--keep", file)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	n, err := io.Copy(io.Discard, out)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return 0, fmt.Errorf("cannot compress %s: %w: %s", file, err, complaint.String())
	}
	return n, nil
}
