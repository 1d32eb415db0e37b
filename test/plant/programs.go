package plant

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
