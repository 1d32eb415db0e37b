package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/margolite/margolite/test/plant"
)

// site is where programs that stay run side by side: a directory on the medium, and
// one in memory for what a device would have in memory.
type site struct {
	dir, volatile string
	places        int
	daemons       []*exec.Cmd
}

func newSite(dir string) (*site, error) {
	s := &site{dir: dir, volatile: filepath.Join(dir, "v")}
	if err := os.MkdirAll(s.volatile, 0o755); err != nil {
		return nil, err
	}
	if err := syscall.Mount("tmpfs", s.volatile, "tmpfs", 0, "huge=never,size=512m"); err != nil {
		return nil, fmt.Errorf("cannot mount a tmpfs: %w", err)
	}
	return s, nil
}

// place makes a network namespace that goes with the site.
func (s *site) place(ctx context.Context) (*place, error) {
	s.places++
	return newPlace(ctx, filepath.Join(s.volatile, fmt.Sprintf("net%d", s.places)))
}

// daemon starts a program that goes on until the end.
func (s *site) daemon(p *place, log string, environment []string, program string, args ...string) (*exec.Cmd, error) {
	out, err := os.Create(filepath.Join(s.volatile, log))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, environment
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.start(cmd); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", program, err)
	}
	s.daemons = append(s.daemons, cmd)
	return cmd, nil
}

// close ends everything, the first daemon last. What still runs in containers goes on in
// its shim until it is killed. The processes that can be seen here are those of this
// program's namespace.
func (s *site) close() {
	for _, d := range slices.Backward(s.daemons) {
		_ = d.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		ended := time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(-d.Process.Pid, syscall.SIGKILL) })
		_ = d.Wait()
		ended.Stop()
	}
	for range 3 { // who is killed may just have forked
		for _, pid := range plant.Processes("containerd-shim") {
			plant.KillTree(pid)
		}
	}
	plant.UnmountBelow(s.dir)
}
