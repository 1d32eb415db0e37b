package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/margolite/margolite/runtime/compose"
)

// composeFiles are the names that are looked for when none is given, here and
// then in the directories above; overrides are merged over what was found.
var (
	composeFiles = []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"}
	overrides    = []string{"compose.override.yaml", "compose.override.yml", "docker-compose.override.yaml", "docker-compose.override.yml"}
)

// maxFiles bounds the Compose files of one project, as the agent does.
const maxFiles = 16

// composeProject is the project that the command line means.
type composeProject struct {
	files     texts
	name      string
	profiles  texts
	envFiles  texts
	directory string
	input     io.Reader // of this process

	contents    map[string][]byte // of those files that the agent cannot read
	environment map[string]string
}

// composeFlags makes a flag set with what every verb of compose takes.
func (c *cli) composeFlags(name string, p *composeProject) *flag.FlagSet {
	f := c.flags(name)
	f.Var(&p.files, "file", "read Compose `FILE`, - for standard input; may be repeated to merge several; default: compose.yaml and the like, here or above")
	short(f, "f", "file")
	f.StringVar(&p.name, "project-name", p.name, "use this `PROJECT` name; default: the one in the file, else its directory")
	short(f, "p", "project-name")
	f.Var(&p.profiles, "profile", "enable the services of `PROFILE`; may be repeated; * enables all")
	f.Var(&p.envFiles, "env-file", "read variables from `FILE`, which take precedence over .env; may be repeated")
	f.StringVar(&p.directory, "project-directory", p.directory, "resolve relative paths in `DIR`; default: the directory of the first Compose file")
	return f
}

// find completes files, name and environment. Variables of the environment of
// this process go before those of --env-file, these before those of .env.
func (p *composeProject) find(ctx context.Context, env []string) error {
	p.environment, p.contents = make(map[string]string, len(env)), map[string][]byte{}
	for _, v := range env {
		if key, value, ok := strings.Cut(v, "="); ok && key != "" {
			p.environment[key] = value
		}
	}
	own := maps.Clone(p.environment)
	for _, file := range p.envFiles {
		vars, err := compose.ReadEnv(ctx, file, p.environment)
		if err != nil {
			return err
		}
		maps.Copy(p.environment, vars)
		maps.Copy(p.environment, own)
	}
	if err := p.findFiles(ctx); err != nil {
		return err
	}
	if len(p.files) > maxFiles {
		return fmt.Errorf("cannot merge %d Compose files: the limit is %d", len(p.files), maxFiles)
	}
	for i, file := range p.files {
		abs, err := filepath.Abs(file)
		if err != nil {
			return fmt.Errorf("cannot find Compose file %s: %w", file, err)
		}
		if p.files[i] = abs; !p.readsHere(file) {
			_, err = os.Stat(abs)
		} else if _, read := p.contents[abs]; read {
			err = fmt.Errorf("%s can only be read once", file)
		} else {
			p.contents[abs], err = p.content(ctx, file)
		}
		if err != nil {
			return fmt.Errorf("cannot read Compose file: %w", err)
		}
	}
	if p.contents[p.files[0]] != nil && p.directory == "" {
		p.directory = "."
	}
	if p.directory != "" {
		dir, err := filepath.Abs(p.directory)
		if err != nil {
			return fmt.Errorf("cannot find project directory %s: %w", p.directory, err)
		}
		p.directory = dir
	}
	if p.name == "" {
		p.name = compose.ProjectName(compose.Options{
			Files: p.files, Contents: p.contents, WorkingDir: p.directory,
			Environment: map[string]string{"COMPOSE_PROJECT_NAME": p.variable(ctx, "COMPOSE_PROJECT_NAME")},
		})
	}
	return nil
}

// readsHere says whether only this process can read a file: standard input, a pipe, or what it has open.
func (p *composeProject) readsHere(file string) bool {
	info, err := os.Stat(file)
	return file == "-" || strings.HasPrefix(file, "/dev/") || strings.HasPrefix(file, "/proc/") ||
		err == nil && !info.Mode().IsRegular() && !info.IsDir()
}

// content reads such a file. What has more bytes than a Compose file may have is refused by who loads it.
func (p *composeProject) content(ctx context.Context, file string) ([]byte, error) {
	var content []byte
	done := make(chan error, 1)
	go func() { // ends with the input, which nobody can interrupt
		in := p.input
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				done <- err
				return
			}
			defer f.Close()
			in = f
		}
		var err error
		content, err = io.ReadAll(io.LimitReader(in, compose.MaxFile+1))
		done <- err
	}()
	select {
	case err := <-done:
		return content, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// findFiles looks for the Compose files: those given, those of COMPOSE_FILE,
// else the usual names.
func (p *composeProject) findFiles(ctx context.Context) error {
	if len(p.files) > 0 {
		return nil
	}
	if listed := p.variable(ctx, "COMPOSE_FILE"); listed != "" {
		separator := p.variable(ctx, "COMPOSE_PATH_SEPARATOR")
		if separator == "" {
			separator = ":"
		}
		p.files = strings.Split(listed, separator)
		return nil
	}
	dir := p.directory
	if dir == "" {
		here, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("cannot find Compose file: %w", err)
		}
		dir = here
	}
	for {
		if file := firstIn(dir, composeFiles); file != "" {
			p.files = texts{file}
			if over := firstIn(dir, overrides); over != "" {
				p.files = append(p.files, over)
			}
			return nil
		}
		above := filepath.Dir(dir)
		if above == dir {
			return &hintError{errors.New("cannot find a Compose file in this directory or above"), "name one with -f FILE"}
		}
		dir = above
	}
}

// variable is one that Compose itself looks at: of the environment, else of .env
// in the project's directory. What is wrong with .env is said when the project
// is loaded.
func (p *composeProject) variable(ctx context.Context, name string) string {
	if value, ok := p.environment[name]; ok {
		return value
	}
	dir := p.directory
	if dir == "" && len(p.files) > 0 {
		dir = filepath.Dir(p.files[0])
	}
	vars, err := compose.ReadEnv(ctx, filepath.Join(dir, ".env"), p.environment)
	if err != nil {
		return ""
	}
	return vars[name]
}

// findName completes the name; the files are not needed if the name is given.
func (p *composeProject) findName(ctx context.Context, env []string) error {
	if p.name != "" {
		return nil
	}
	if name, ok := lookup(env, "COMPOSE_PROJECT_NAME"); ok && name != "" && len(p.files) == 0 {
		p.name = name
		return nil
	}
	return p.find(ctx, env)
}

func firstIn(dir string, names []string) string {
	for _, name := range names {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && !info.IsDir() {
			return file
		}
	}
	return ""
}
