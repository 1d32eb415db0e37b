package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/plant"
)

// dockerPrograms are Docker's on PATH.
type dockerPrograms struct {
	daemon, client string
	compose        []string // before the verb, without the socket; of the plugin or docker-compose
}

// findDocker finds them; missing says what is not there.
func findDocker(ctx context.Context) (p dockerPrograms, missing string) {
	var err error
	if p.daemon, err = exec.LookPath("dockerd"); err != nil {
		return p, "no dockerd on PATH"
	}
	if p.client, err = exec.LookPath("docker"); err != nil {
		return p, "no docker on PATH"
	}
	if exec.CommandContext(ctx, p.client, "compose", "version").Run() == nil {
		p.compose = []string{p.client, "compose"}
	} else if program, err := exec.LookPath("docker-compose"); err == nil {
		p.compose = []string{program}
	} else {
		return p, "neither the compose plugin nor docker-compose"
	}
	return p, ""
}

// dockerStack is dockerd with its containerd, Docker Compose, and the agent of
// somebody else if there is one.
type dockerStack struct {
	dockerPrograms
	dir    string // of everything; v below it is in memory
	place  *place
	agent  *exec.Cmd // nil: none
	all    []*exec.Cmd
	loaded bool // the image is there
}

const dockerImage = "bench.example/server:1"

// withDocker starts Docker in a network namespace of its own, and beside it the
// agent of a command line, does something with them and ends them. The programs are
// copies, so that nobody else on this machine shares their pages.
func withDocker(ctx context.Context, dir string, p dockerPrograms, agent string, do func(stack) error) (err error) {
	s := &dockerStack{dockerPrograms: p, dir: dir}
	programs := []string{p.daemon}
	for _, name := range []string{"containerd", shimName, "docker-proxy", "runc"} {
		path, err := exec.LookPath(name)
		if err != nil {
			return fmt.Errorf("cannot find a program of Docker: %w", err)
		}
		programs = append(programs, path)
	}
	if programs, err = copyTo(filepath.Join(dir, "bin"), programs); err != nil {
		return err
	}
	if err := os.MkdirAll(s.volatile(), 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", s.volatile(), "tmpfs", 0, "size=64m"); err != nil {
		return fmt.Errorf("cannot mount a tmpfs: %w", err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if s.place, err = newPlace(); err != nil {
		return err
	}
	state := filepath.Join(s.volatile(), "docker")
	if _, err := s.start("docker.log", programs[0], "--data-root", filepath.Join(dir, "docker"), "--exec-root", state,
		"--pidfile", state+".pid", "--userland-proxy-path", programs[3], "-H", s.socket()); err != nil {
		return err
	}
	answers := func() error {
		conn, err := net.Dial("unix", strings.TrimPrefix(s.socket(), "unix://"))
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	if err := plant.Eventually(ctx, answers); err != nil {
		return fmt.Errorf("dockerd did not start: %w", err)
	}
	if agent != "" {
		if s.agent, err = s.start("agent.log", "/bin/sh", "-c", "exec "+agent); err != nil {
			return err
		}
	}
	return do(s)
}

func (s *dockerStack) volatile() string { return filepath.Join(s.dir, "v") }

func (s *dockerStack) socket() string { return "unix://" + filepath.Join(s.volatile(), "docker.sock") }

// environment is that of every program: the agent finds Docker by it.
func (s *dockerStack) environment(more ...string) []string {
	return slices.Concat(os.Environ(), []string{
		"PATH=" + filepath.Join(s.dir, "bin") + ":" + os.Getenv("PATH"), "DOCKER_HOST=" + s.socket(),
	}, more)
}

// start starts a program that goes on until the end.
func (s *dockerStack) start(log, program string, args ...string) (*exec.Cmd, error) {
	out, err := os.Create(filepath.Join(s.volatile(), log))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, s.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.place.start(cmd); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", program, err)
	}
	s.all = append(s.all, cmd)
	return cmd, nil
}

func (s *dockerStack) kinds() []kind {
	kinds := []kind{
		{"dockerd", []int{s.all[0].Process.Pid}},
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

// load gives Docker the image, with the first deployment.
func (s *dockerStack) load(ctx context.Context) error {
	if s.loaded {
		return nil
	}
	image, err := loadServer()
	if err != nil {
		return err
	}
	archive, err := ociimage.Saved(map[string]*ociimage.Artifact{dockerImage: image})
	if err != nil {
		return err
	}
	file := filepath.Join(s.dir, "server.tar")
	if err := os.WriteFile(file, archive, 0o600); err != nil {
		return err
	}
	s.loaded = true
	return s.run(ctx, s.environment(), s.client, "load", "-i", file)
}

func (s *dockerStack) remove(ctx context.Context, _ workload) error { return s.verb(ctx, "", "down") }

func (s *dockerStack) look(ctx context.Context) error { return s.verb(ctx, "", "ps") }

func (s *dockerStack) file() string { return filepath.Join(s.dir, "compose.yaml") }

// verb runs one of Docker Compose.
func (s *dockerStack) verb(ctx context.Context, greeting string, args ...string) error {
	line := slices.Concat(s.compose, []string{"-f", s.file(), "-p", "load"}, args)
	return s.run(ctx, s.environment("IMAGE="+dockerImage, "GREETING="+greeting), line[0], line[1:]...)
}

func (s *dockerStack) run(ctx context.Context, environment []string, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = environment
	return s.place.run(ctx, cmd)
}

// close ends everything, the daemon last. What runs in containers goes on in its
// shim until it is killed.
func (s *dockerStack) close() error {
	for _, cmd := range slices.Backward(s.all) {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		ended := time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		_ = cmd.Wait()
		ended.Stop()
	}
	if s.place != nil {
		s.place.close()
	}
	for range 3 { // who is killed may just have forked
		for _, pid := range plant.Processes(shimName, "-namespace\x00moby\x00") {
			for _, victim := range append(plant.Descendants(pid), pid) {
				_ = syscall.Kill(victim, syscall.SIGKILL)
			}
		}
	}
	plant.UnmountBelow(s.dir)
	return nil
}
