package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

// engine is how a container engine is told things, each by commands with ; between them. They are those of
// packaging/image/README.md, with $DIR for the engine's medium and $RUN for what it loses in a reboot.
type engine struct {
	daemon  string // empty: it has none
	ready   string // fails until the daemon answers
	load    string // is followed by the archive
	discard string // is followed by an image that no container has
	once    string // is followed by an image and what margolite is told
	start   string // is followed by an image and what margolite is told
	stop    string // and remove; empty: start goes on until it is interrupted
	exec    string // is followed by a command
	boot    string // what the system does once the daemon runs, whether it succeeds or not
	logs    string // empty: start prints them
}

const (
	docker = "docker --host unix://$RUN/docker.sock "
	podman = "podman --root $DIR/podman --runroot $RUN/podman --cgroup-manager cgroupfs --events-backend file "
	ctr    = "ctr --address $RUN/containerd.sock "

	dir = " --env MARGOLITE_HOST_DIR=$DIR/programs "
)

var engines = map[string]engine{
	"docker": {
		daemon: "dockerd --data-root $DIR/docker --exec-root $RUN/docker --pidfile $RUN/docker.pid --host unix://$RUN/docker.sock " +
			"--bridge=none --iptables=false --ip6tables=false",
		ready:   docker + "version",
		load:    docker + "load --input",
		discard: docker + "image rm",
		once:    docker + "run --rm",
		start:   docker + "run --detach --name margolite --restart always --privileged --pid host --network host" + dir,
		stop:    docker + "stop margolite;" + docker + "rm margolite",
		exec:    docker + "exec margolite",
		logs:    docker + "logs margolite",
	},
	"podman": {
		load:    podman + "load --input",
		discard: podman + "image rm",
		once:    podman + "run --rm",
		start:   podman + "run --detach --name margolite --restart always --privileged --pid host --network host" + dir,
		stop:    podman + "stop margolite;" + podman + "rm margolite",
		exec:    podman + "exec margolite",
		boot:    podman + "start --all --filter restart-policy=always",
		logs:    podman + "logs margolite",
	},
	"containerd": {
		daemon:  "containerd --config /dev/null --root $DIR/containerd --state $RUN/containerd --address $RUN/containerd.sock",
		ready:   ctr + "version",
		load:    ctr + "images import",
		discard: ctr + "images rm --sync",
		once:    ctr + "run --rm",
		start:   ctr + "run --rm --privileged --net-host --with-ns pid:/proc/1/ns/pid" + dir,
		exec:    ctr + "task exec --exec-id 1 margolite",
		boot:    ctr + "task rm --force margolite;" + ctr + "container rm margolite",
	},
}

// margolite is what a command about an image is followed by: ctr wants a name and all of the command.
func (e engine) margolite(image string, args ...string) []string {
	if strings.HasPrefix(e.load, ctr) {
		return slices.Concat([]string{image, "margolite", "/usr/bin/margolite"}, args)
	}
	return slices.Concat([]string{image}, args)
}

// host is the machine that an engine runs on.
type host struct {
	*testing.T
	engine
	dir     string
	run     string
	running *exec.Cmd // start, where it goes on
}

// programs are where the agent's programs are on this host.
func (h *host) programs() string { return filepath.Join(h.dir, "programs") }

func (h *host) log() string { return filepath.Join(h.dir, "log") }

func (h *host) args(command string, more ...string) []string {
	words := strings.Fields(os.Expand(command, func(name string) string {
		return map[string]string{"DIR": h.dir, "RUN": h.run}[name]
	}))
	return append(words, more...)
}

// try runs commands and gives what the last one printed.
func (h *host) try(commands string, more ...string) (out string, err error) {
	for command := range strings.SplitSeq(commands, ";") {
		args := h.args(command, more...)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		var printed bytes.Buffer
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = h.environment()
		cmd.Stdout, cmd.Stderr = &printed, &printed
		cmd.WaitDelay = time.Second // for whoever has inherited them
		err = cmd.Run()
		cancel()
		out = printed.String()
		if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
			return out, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return out, nil
}

func (h *host) must(commands string, more ...string) string {
	h.Helper()
	return expect.Value(h.try(commands, more...))(h)
}

// background starts what goes on.
func (h *host) background(args []string) *exec.Cmd {
	h.Helper()
	log := expect.Value(os.OpenFile(h.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(h)
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = h.environment()
	cmd.Stdout, cmd.Stderr = log, log
	expect.Check(h, cmd.Start())
	return cmd
}

// serve starts the engine.
func (h *host) serve() {
	h.Helper()
	if h.daemon == "" {
		return
	}
	d := h.background(h.args(h.daemon))
	go func() { _ = d.Wait() }() // it ends with the machine
	plant.Require(h, "the engine answers", func() error { _, err := h.try(h.ready); return err })
}

// begin starts the agent's container.
func (h *host) begin(image string, args ...string) {
	h.Helper()
	if h.stop == "" {
		h.running = h.background(h.args(h.start, h.margolite(image, args...)...))
		return
	}
	h.must(h.start, h.margolite(image, args...)...)
}

// end stops the agent's container and removes it.
func (h *host) end() {
	h.Helper()
	if h.stop != "" {
		h.must(h.stop)
		return
	}
	expect.Check(h, errors.Join(h.running.Process.Signal(unix.SIGTERM), h.running.Wait()))
}

// environment of engines. Docker gives privileged containers every capability that the kernel knows, and fails on a
// machine that has fewer, as one in a sandbox: there its runc leaves out what the machine lacks.
func (h *host) environment() []string {
	if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0); err != nil || has == 1 {
		return os.Environ()
	}
	return append(os.Environ(), "PATH="+filepath.Join(h.dir, "bin")+":"+os.Getenv("PATH"))
}

const lesserRunc = `#!/bin/sh
for a; do
	case $last in
	--bundle) file=$a/config.json ;;
	--process) file=$a ;;
	esac
	last=$a
done
[ -z "$file" ] || sed -zi 's/"CAP_SYS_RESOURCE",//g' "$file"
exec %s "$@"
`

func (h *host) writeRunc() {
	h.Helper()
	runc := expect.Value(exec.LookPath("runc"))(h)
	dir := filepath.Join(h.dir, "bin")
	expect.Check(h, errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "runc"), fmt.Appendf(nil, lesserRunc, runc), 0o755)))
}
