package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	for _, t := range targets {
		for _, p := range programNames {
			file := filepath.Join(dist, t.Name(), p.file)
			info, err := os.Stat(file)
			if err != nil {
				return nil, fmt.Errorf("target %s is not complete, run make cross: %w", t.Name(), err)
			}
			measured := program{Target: t.Name(), Name: p.name, Bytes: info.Size()}
			if xz != "" {
				packed, err := exec.CommandContext(ctx, xz, "-9", "--threads=1", "--stdout", "--keep", file).Output()
				if err != nil {
					return nil, fmt.Errorf("cannot compress %s: %w", file, err)
				}
				measured.Compressed = int64(len(packed))
			}
			all = append(all, measured)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no programs in %s, run make cross", dist)
	}
	return all, nil
}
