package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/margolite/margolite/test/plant"
)

// docker is a daemon of Docker in a network namespace of its own.
type docker struct {
	place       *place
	pid         int
	environment []string // of programs that are to find it
	client      []string // the program, with what goes before the verb
	compose     []string // the same for Docker Compose, the plugin or docker-compose
}

// docker starts what is on PATH; missing says what is not there. The programs are
// copies, so that nobody else on this machine shares their pages.
func (s *site) docker(ctx context.Context) (_ *docker, missing string, err error) {
	var programs []string
	for _, name := range []string{"dockerd", "containerd", shimName, "docker-proxy", "runc", "docker"} {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, "no " + name + " on PATH", nil
		}
		programs = append(programs, path)
	}
	socket := "unix://" + filepath.Join(s.volatile, "docker.sock")
	d := &docker{client: []string{programs[5], "-H", socket}}
	if exec.CommandContext(ctx, programs[5], "compose", "version").Run() == nil {
		d.compose = append(slices.Clone(d.client), "compose")
	} else if program, err := exec.LookPath("docker-compose"); err == nil {
		d.compose = []string{program, "-H", socket}
	} else {
		return nil, "neither the compose plugin nor docker-compose", nil
	}
	bin := filepath.Join(s.dir, "bin")
	d.environment = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "DOCKER_HOST="+socket)
	if programs, err = copyTo(bin, programs[:5]); err != nil {
		return nil, "", err
	}
	if d.place, err = s.place(ctx); err != nil {
		return nil, "", err
	}
	state := filepath.Join(s.volatile, "docker")
	daemon, err := s.daemon(d.place, "docker.log", d.environment, programs[0], "--data-root", filepath.Join(s.dir, "docker"),
		"--exec-root", state, "--pidfile", state+".pid", "--userland-proxy-path", programs[3], "-H", socket)
	if err != nil {
		return nil, "", err
	}
	d.pid = daemon.Process.Pid
	if err := plant.Eventually(ctx, func() error { return d.run(ctx, d.client, "version") }); err != nil {
		return nil, "", fmt.Errorf("dockerd did not start: %w", err)
	}
	return d, "", nil
}

func (d *docker) run(ctx context.Context, program []string, args ...string) error {
	return d.runWith(ctx, nil, program, args...)
}

func (d *docker) runWith(ctx context.Context, environment, program []string, args ...string) error {
	cmd := exec.CommandContext(ctx, program[0], slices.Concat(program[1:], args)...)
	cmd.Env = slices.Concat(d.environment, environment)
	return d.place.run(ctx, cmd)
}

const dockerImage = "bench.example/server:1"

// dockerStack is Docker, and beside it the agent of somebody else.
type dockerStack struct {
	*docker
	dir    string
	agent  *exec.Cmd // nil: none
	loaded bool      // the image is there
}

// withDocker starts Docker, and beside it the agent of a command line, does something
// with them and ends them. It gives what is missing for that.
func withDocker(ctx context.Context, dir, agent string, do func(stack) error) (missing string, err error) {
	at, err := newSite(dir)
	if err != nil {
		return "", err
	}
	defer at.close()
	s := &dockerStack{dir: dir}
	if s.docker, missing, err = at.docker(ctx); err != nil || missing != "" {
		return missing, err
	}
	if agent != "" {
		if s.agent, err = at.daemon(s.place, "agent.log", s.environment, "/bin/sh", "-c", "exec "+agent); err != nil {
			return "", err
		}
	}
	return "", do(s)
}

// load gives Docker the image, with the first deployment.
func (s *dockerStack) load(ctx context.Context) error {
	if s.loaded {
		return nil
	}
	file := filepath.Join(s.dir, "server.tar")
	if err := saveServer(dockerImage, file); err != nil {
		return err
	}
	s.loaded = true
	return s.run(ctx, s.client, "load", "-i", file)
}

func (s *dockerStack) kinds() []kind {
	kinds := []kind{
		{"dockerd", []int{s.pid}},
		{"containerd", plant.Processes("containerd\x00--config\x00", s.dir)},
		{"shims", plant.Processes(shimName, "-namespace\x00moby\x00")},
		{"proxies", plant.Processes("docker-proxy\x00-proto\x00", s.dir)},
	}
	if s.agent != nil {
		pid := s.agent.Process.Pid
		kinds = append(kinds, kind{"agent", append(plant.Descendants(pid), pid)})
	}
	return kinds
}

func (s *dockerStack) deploy(ctx context.Context, l workload, greeting string) error {
	if err := s.load(ctx); err != nil {
		return err
	}
	if err := os.WriteFile(s.file(), []byte(l.compose()), 0o600); err != nil {
		return err
	}
	return s.verb(ctx, greeting, "up", "-d", "--wait")
}

func (s *dockerStack) remove(ctx context.Context) error { return s.verb(ctx, "", "down") }

func (s *dockerStack) look(ctx context.Context) error { return s.verb(ctx, "", "ps") }

func (s *dockerStack) file() string { return filepath.Join(s.dir, "compose.yaml") }

// verb runs one of Docker Compose.
func (s *dockerStack) verb(ctx context.Context, greeting string, args ...string) error {
	environment := []string{"IMAGE=" + dockerImage, "GREETING=" + greeting}
	return s.runWith(ctx, environment, s.compose, append([]string{"-f", s.file(), "-p", "load"}, args...)...)
}
