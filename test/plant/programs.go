package plant

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/isolated"
)

// Build tags of the programs. The agent is built with the faults that tests inject.
const (
	AgentTags = "faults,grpcnotrace,osusergo,netgo,no_rdt"
	ShimTags  = "no_grpc,osusergo,netgo"
)

// Shim is the file and the name of the shim, which lies beside the agent.
const Shim = "containerd-shim-runc-v2"

// Program is one of the module's.
type Program struct {
	File    string // that is made
	Name    string // of its directory below cmd
	Version string // that it says it is
	Tags    string
	Dir     string // of a checkout, maybe of another commit; empty: the one that the tests are of
}

// BuildPrograms builds programs into a directory. It needs the go command.
func BuildPrograms(ctx context.Context, dir string, programs ...Program) error {
	for _, p := range programs {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X github.com/margolite/margolite/build.version="+p.Version,
			"-tags", p.Tags, "-o", filepath.Join(dir, p.File), "github.com/margolite/margolite/cmd/"+p.Name)
		cmd.Dir = p.Dir
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("cannot build %s: %w: %s", p.Name, err, out)
		}
	}
	return nil
}

// BuildAgent builds the agent and its shim into a directory. It needs the go command.
func BuildAgent(ctx context.Context, dir string) error {
	return BuildPrograms(ctx, dir,
		Program{File: "margolite", Name: "margolite", Version: "test", Tags: AgentTags},
		Program{File: Shim, Name: Shim, Tags: ShimTags},
	)
}

// programsDir tells a process of tests where the programs are.
const programsDir = "MARGOLITE_TEST_PROGRAMS"

// ProgramsDir is where RunTests had the programs built.
func ProgramsDir() string { return os.Getenv(programsDir) }

// RunTests has build make what the tests run in a directory, once, and runs them as
// root in processes and namespaces of their own (package isolated). Each process
// begins with prepare; nil: there is nothing to prepare.
func RunTests(m isolated.Tests, build func(ctx context.Context, dir string) error, prepare func() error) int {
	if os.Geteuid() != 0 {
		fmt.Println("these tests need root: containers are real")
		return 1
	}
	if isolated.Outside() && ProgramsDir() == "" {
		dir, err := os.MkdirTemp("", "margolite-tests-")
		if err == nil {
			defer os.RemoveAll(dir)
			err = errors.Join(build(context.Background(), dir), os.Setenv(programsDir, dir))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "cannot build what the tests run:", err)
			return 1
		}
	}
	return isolated.MainInLanes(prepared{m, prepare})
}

// prepared are tests in namespaces of their own, with what they need there.
type prepared struct {
	isolated.Tests
	prepare func() error
}

func (p prepared) Run() int {
	err := mountShimDir()
	if err == nil && p.prepare != nil {
		err = p.prepare()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot prepare what the tests run:", err)
		return 1
	}
	return p.Tests.Run()
}

// ShimDir is where Debian's containerd keeps the sockets of its shims, whatever
// its state is.
const ShimDir = "/run/containerd"

// mountShimDir gives this mount namespace one of its own, in which the machine's
// containerd has nothing.
func mountShimDir() error {
	if err := os.MkdirAll(ShimDir, 0o711); err != nil { // nothing has run on this machine yet
		return fmt.Errorf("cannot make the directory of shims: %w", err)
	}
	if err := unix.Mount("tmpfs", ShimDir, "tmpfs", 0, "mode=711"); err != nil {
		return fmt.Errorf("cannot mount the directory of shims: %w", err)
	}
	return nil
}
