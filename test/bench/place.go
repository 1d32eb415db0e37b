package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// place is a network namespace that programs are started in, mounted at a file.
type place struct{ file string }

// newPlace makes a network namespace with a loopback interface of its own.
func newPlace(ctx context.Context, file string) (*place, error) {
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "unshare", "--net="+file, "busybox", "ip", "link", "set", "lo", "up").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("cannot make a network namespace: %w: %s", err, out)
	}
	return &place{file}, nil
}

// start starts a program there; without a place, here.
func (p *place) start(cmd *exec.Cmd) error {
	if p != nil {
		enter := exec.Command("nsenter", "--net="+p.file, "--", cmd.Path)
		cmd.Path, cmd.Args, cmd.Err = enter.Path, append(enter.Args, cmd.Args[1:]...), errors.Join(cmd.Err, enter.Err)
	}
	return cmd.Start()
}

// run runs a program there, and gives what it wrote when it fails.
func (p *place) run(ctx context.Context, cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := p.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%s: %w\n%s\n%s", filepath.Base(cmd.Path), err, &out, cmd))
	}
	return nil
}
