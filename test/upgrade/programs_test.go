package upgrade

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/plant"
)

//go:embed former
var formerCommit string // that devices are upgraded from where there is no release

// unbuilt tells the process of the tests why there are no programs.
const unbuilt = "MARGOLITE_TEST_UNBUILT"

// A release is the directory of its programs.
const (
	former  = "former"
	present = "present"
)

// agent is the file of a release's agent.
const agent = "margolite"

// errNoHistory says that there is no commit to come from.
var errNoHistory = errors.New("there is no former commit here")

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		os.Exit(m.Run()) // which skips them all
	}
	os.Exit(plant.RunTests(m, build, nil))
}

// build builds both releases.
func build(ctx context.Context, dir string) error {
	top, err := run(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	cached, err := buildFormer(ctx, top)
	if errors.Is(err, errNoHistory) {
		return os.Setenv(unbuilt, err.Error())
	}
	if err != nil {
		return err
	}
	if err := os.Symlink(cached, filepath.Join(dir, former)); err != nil {
		return err
	}
	if err := plant.BuildPrograms(ctx, filepath.Join(dir, present), release(top, present)...); err != nil {
		return err
	}
	return plant.BuildDemo(ctx, dir)
}

// buildFormer gives the directory of the former release's programs. They are built
// once, and kept in the user's cache.
func buildFormer(ctx context.Context, top string) (string, error) {
	revision := strings.TrimSpace(formerCommit)
	if tag, err := run(ctx, top, "git", "describe", "--tags", "--abbrev=0", "HEAD~1"); err == nil {
		revision = tag
	}
	commit, err := run(ctx, top, "git", "rev-parse", "--verify", revision+"^{commit}")
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoHistory, err)
	}
	caches, err := os.UserCacheDir()
	if err != nil {
		caches = os.TempDir() // no home: as good for a test
	}
	cache := filepath.Join(caches, "margolite-test", "upgrade")
	programs := filepath.Join(cache, commit+"-"+runtime.Version())
	if _, err := os.Stat(programs); err == nil {
		return programs, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	sources, built := filepath.Join(work, "sources"), filepath.Join(work, "built")
	if err := os.Mkdir(sources, 0o755); err != nil {
		return "", err
	}
	if _, err := run(ctx, top, "sh", "-c", `git archive "$0" | tar -x -C "$1"`, commit, sources); err != nil {
		return "", err
	}
	if err := plant.BuildPrograms(ctx, built, release(sources, commit)...); err != nil {
		return "", fmt.Errorf("commit %s: %w", commit, err)
	}
	if err := os.Rename(built, programs); err != nil && !errors.Is(err, fs.ErrExist) { // another run was first
		return "", err
	}
	return programs, nil
}

// release are the programs of a release, whose sources are in a directory.
func release(sources, version string) []plant.Program {
	return []plant.Program{
		{File: agent, Name: "margolite", Version: version, Tags: plant.AgentTags, Dir: sources},
		{File: plant.Shim, Name: plant.Shim, Version: version, Tags: plant.ShimTags, Dir: sources},
	}
}

// run runs a command and gives what it printed.
func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, said.Bytes())
	}
	return strings.TrimSpace(out.String()), nil
}
