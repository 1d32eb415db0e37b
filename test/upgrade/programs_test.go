package upgrade

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/demoapp/demoimage"
	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
)

const (
	// fromRevision names the commit that devices are upgraded from. Without it
	// that is the last release, or commitsBack where there is none.
	fromRevision = "MARGOLITE_UPGRADE_FROM"
	commitsBack  = 20

	// programsDir tells the process of the tests where the programs are, and
	// unbuilt why there are none.
	programsDir = "MARGOLITE_TEST_PROGRAMS"
	unbuilt     = "MARGOLITE_TEST_UNBUILT"
)

// A release is the directory of its programs.
const (
	former  = "former"
	present = "present"
)

// agent is the file of a release's agent.
const agent = "margolite"

// demoProgram is that of the demonstration's application.
const demoProgram = "demoapp"

// errNoHistory says that there is no commit to come from.
var errNoHistory = errors.New("there is no former commit here")

func TestMain(m *testing.M) { os.Exit(testsIn(m)) }

// testsIn builds both releases before the tests, which have no network.
func testsIn(m *testing.M) int {
	flag.Parse()
	if testing.Short() {
		return m.Run() // which skips them all
	}
	if !isolated.Outside() {
		return isolated.Main(tests{m})
	}
	dir, err := os.MkdirTemp("", "margolite-upgrade-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = errors.Join(build(context.Background(), dir), os.Setenv(programsDir, dir))
	}
	if errors.Is(err, errNoHistory) {
		err = os.Setenv(unbuilt, err.Error())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot build what the tests run:", err)
		return 1
	}
	return isolated.Main(tests{m})
}

// tests are what runs in namespaces of its own, with what it needs there.
type tests struct{ *testing.M }

func (t tests) Run() int {
	if err := plant.MountShimDir(); os.Geteuid() == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return t.M.Run()
}

func build(ctx context.Context, dir string) error {
	top, err := run(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	revision, err := formerRevision(ctx, top)
	if err != nil {
		return err
	}
	sources := filepath.Join(dir, "sources")
	if err := os.Mkdir(sources, 0o755); err != nil {
		return err
	}
	if _, err := run(ctx, top, "sh", "-c", `git archive "$0" | tar -x -C "$1"`, revision, sources); err != nil {
		return err
	}
	if err := plant.BuildPrograms(ctx, filepath.Join(dir, former), release(sources, revision)...); err != nil {
		return fmt.Errorf("commit %s: %w", revision, err)
	}
	if err := plant.BuildPrograms(ctx, filepath.Join(dir, present), release(top, present)...); err != nil {
		return err
	}
	program, err := demoimage.Program(ctx, &ociimage.Programs{}, "")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, demoProgram), program, 0o755)
}

// formerRevision is the commit to come from. It is an older one than the one
// before, which seldom changed what matters here.
func formerRevision(ctx context.Context, top string) (string, error) {
	if revision := os.Getenv(fromRevision); revision != "" {
		return revision, nil
	}
	git := func(args ...string) (string, error) { return run(ctx, top, "git", args...) }
	if within, err := git("rev-parse", "--show-prefix"); err != nil || within != "" {
		return "", fmt.Errorf("%w: the sources are in no repository of git; %s names one of its commits", errNoHistory, fromRevision)
	}
	if tag, err := git("describe", "--tags", "--abbrev=0", "HEAD~1"); err == nil {
		return tag, nil
	}
	all, err := git("rev-list", "--first-parent", fmt.Sprintf("--max-count=%d", commitsBack+1), "HEAD")
	if err != nil {
		return "", err
	}
	revisions := strings.Fields(all)
	if len(revisions) < 2 {
		return "", fmt.Errorf("%w: the history was cut off behind the present one", errNoHistory)
	}
	return revisions[len(revisions)-1], nil
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

// application is the demonstration's, of programs that were built before.
func application(t *testing.T) *plant.Application {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(os.Getenv(programsDir), demoProgram))
	check(t, err)
	component, err := demoimage.Component(t.Context(), "1.0.0")
	check(t, err)
	a, err := plant.NewApplication(program, component, "1.0.0")
	check(t, err)
	return a
}
