package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/runtime/compose"
)

// composeFiles are looked for here and in the directories above; overrides are merged over them.
var (
	composeFiles = []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"}
	overrides    = []string{"compose.override.yaml", "compose.override.yml", "docker-compose.override.yaml", "docker-compose.override.yml"}
)

// maxFiles bounds the Compose files of one project, as the agent does.
const maxFiles = 16

// composeProject is the command line's project. Contents holds files that the agent cannot read.
type composeProject struct {
	compose.Options
	envFiles command.Texts
}

func (c *cli) composeFlags(f *command.Flags) {
	p := &c.project
	f.Var((*command.Texts)(&p.Files), "file,f", "read Compose `FILE`, - for standard input; may be repeated to merge several; default: compose.yaml and the like, here or above")
	f.StringVar(&p.ProjectName, "project-name,p", p.ProjectName, "use this `PROJECT` name; default: the one in the file, else its directory")
	f.Var((*command.Texts)(&p.Profiles), "profile", "enable the services of `PROFILE`; may be repeated; * enables all")
	f.Var(&p.envFiles, "env-file", "read variables from `FILE`, which take precedence over .env; may be repeated")
	f.StringVar(&p.WorkingDir, "project-directory", p.WorkingDir, "resolve relative paths in `DIR`; default: the directory of the first Compose file")
}

// findProject completes files, name and environment. This process's environment takes precedence
// over --env-file, and that over .env.
func (c *cli) findProject(ctx context.Context) error {
	p := &c.project
	p.Environment, p.Contents = map[string]string{}, map[string][]byte{}
	for _, v := range c.env {
		if key, value, ok := strings.Cut(v, "="); ok && key != "" {
			p.Environment[key] = value
		}
	}
	own := maps.Clone(p.Environment)
	for _, file := range p.envFiles {
		vars, err := compose.ReadEnv(ctx, file, p.Environment)
		if err != nil {
			return err
		}
		maps.Copy(p.Environment, vars)
		maps.Copy(p.Environment, own)
	}
	start, err := filepath.Abs(p.WorkingDir) // "" is the current directory
	if err != nil {
		return fmt.Errorf("cannot find project directory %s: %w", p.WorkingDir, err)
	}
	if err := p.findFiles(ctx, start); err != nil {
		return err
	}
	if len(p.Files) > maxFiles {
		return fmt.Errorf("cannot merge %d Compose files: the limit is %d", len(p.Files), maxFiles)
	}
	for i, file := range p.Files {
		abs, err := filepath.Abs(file)
		if err != nil {
			return fmt.Errorf("cannot find Compose file %s: %w", file, err)
		}
		if p.Files[i] = abs; !isOurs(file) {
			_, err = os.Stat(abs)
		} else if _, read := p.Contents[abs]; read {
			err = fmt.Errorf("%s can only be read once", file)
		} else {
			p.Contents[abs], err = c.content(ctx, file)
		}
		if err != nil {
			return fmt.Errorf("cannot read Compose file: %w", err)
		}
	}
	if p.WorkingDir != "" || p.Contents[p.Files[0]] != nil {
		p.WorkingDir = start
	}
	if p.ProjectName == "" {
		o := p.Options
		o.Environment = map[string]string{"COMPOSE_PROJECT_NAME": p.variable(ctx, "COMPOSE_PROJECT_NAME")}
		p.ProjectName = compose.ProjectName(o)
	}
	return nil
}

// isOurs reports whether only this process can read a file: standard input, a pipe, or an open one.
func isOurs(file string) bool {
	info, err := os.Stat(file)
	return file == "-" || strings.HasPrefix(file, "/dev/") || strings.HasPrefix(file, "/proc/") ||
		err == nil && !info.Mode().IsRegular() && !info.IsDir()
}

// content reads such a file. The loader rejects an oversized one.
func (c *cli) content(ctx context.Context, file string) ([]byte, error) {
	var content []byte
	done := make(chan error, 1)
	go func() { // ends with the input, which cannot be interrupted
		in := c.in
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

// findFiles determines the Compose files: the given ones, those of COMPOSE_FILE, or the default
// names in a directory and above.
func (p *composeProject) findFiles(ctx context.Context, dir string) error {
	if len(p.Files) > 0 {
		return nil
	}
	if listed := p.variable(ctx, "COMPOSE_FILE"); listed != "" {
		p.Files = strings.Split(listed, cmp.Or(p.variable(ctx, "COMPOSE_PATH_SEPARATOR"), ":"))
		return nil
	}
	for {
		if file := firstIn(dir, composeFiles); file != "" {
			p.Files = []string{file}
			if over := firstIn(dir, overrides); over != "" {
				p.Files = append(p.Files, over)
			}
			return nil
		}
		above := filepath.Dir(dir)
		if above == dir {
			return command.Hint(errors.New("cannot find a Compose file in this directory or above"), "name one with -f FILE")
		}
		dir = above
	}
}

// variable returns a variable that Compose itself uses: from the environment, else from .env in the
// project's directory. Errors of .env are reported when the project is loaded.
func (p *composeProject) variable(ctx context.Context, name string) string {
	if value, ok := p.Environment[name]; ok {
		return value
	}
	dir := p.WorkingDir
	if dir == "" && len(p.Files) > 0 {
		dir = filepath.Dir(p.Files[0])
	}
	vars, err := compose.ReadEnv(ctx, filepath.Join(dir, ".env"), p.Environment)
	if err != nil {
		return ""
	}
	return vars[name]
}

// findName completes the name; no files are needed if the name is given.
func (c *cli) findName(ctx context.Context) error {
	p := &c.project
	if name, _ := lookup(c.env, "COMPOSE_PROJECT_NAME"); p.ProjectName == "" && len(p.Files) == 0 {
		p.ProjectName = name
	}
	if p.ProjectName != "" {
		return nil
	}
	return c.findProject(ctx)
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
