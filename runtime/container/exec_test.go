package container_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/test/expect"
)

func TestExec(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		c := d.config("web", "")
		c.Service.Environment = map[string]string{"GREETING": "hello"}
		c.Service.User = "nobody"
		c.Service.WorkingDir = "/tmp"
		id := d.up(c)

		tests := map[string]struct {
			exec   container.Exec
			out    string
			errOut string
			code   int
		}{
			"output and errors are apart":  {exec: container.Exec{Args: []string{"sh", "-c", "echo a; echo b >&2"}}, out: "a\n", errOut: "b\n"},
			"an exit code":                 {exec: container.Exec{Args: []string{"sh", "-c", "exit 42"}}, code: 42},
			"the container's environment":  {exec: container.Exec{Args: []string{"sh", "-c", "echo $GREETING $FROM"}}, out: "hello image\n"},
			"a changed environment":        {exec: container.Exec{Args: []string{"sh", "-c", "echo $GREETING $X"}, Env: []string{"GREETING=hi", "X=1"}}, out: "hi 1\n"},
			"the container's user":         {exec: container.Exec{Args: []string{"id", "-u"}}, out: "65534\n"},
			"another user":                 {exec: container.Exec{Args: []string{"id", "-u"}, User: "root"}, out: "0\n"},
			"a user and a group by number": {exec: container.Exec{Args: []string{"sh", "-c", "id -u; id -g"}, User: "12:34"}, out: "12\n34\n"},
			"the container's directory":    {exec: container.Exec{Args: []string{"sh", "-c", "cd . && echo $PWD"}}, out: "/tmp\n"},
			"another directory":            {exec: container.Exec{Args: []string{"sh", "-c", "cd . && echo $PWD"}, WorkingDir: "/etc"}, out: "/etc\n"},
			"no capability for nobody":     {exec: container.Exec{Args: []string{"grep", "-E", "Cap(Inh|Eff|Amb)", "/proc/self/status"}}, out: strings.ReplaceAll("CapInh:0CapEff:0CapAmb:0", ":0", ":\t0000000000000000\n")},
			"those of Docker for root":     {exec: container.Exec{Args: []string{"grep", "CapEff", "/proc/self/status"}, User: "0"}, out: "CapEff:\t00000000a80425fb\n"},
			"input":                        {exec: container.Exec{Args: []string{"cat"}, Stdin: strings.NewReader("from here")}, out: "from here"},
			"empty input":                  {exec: container.Exec{Args: []string{"cat"}, Stdin: strings.NewReader("")}},
			"input that nobody reads":      {exec: container.Exec{Args: []string{"true"}, Stdin: endless{}}},
			"much output":                  {exec: container.Exec{Args: []string{"sh", "-c", "seq 1 200000 | tail -n 1; seq 1 200000 >&2"}}, out: "200000\n", errOut: numbers(200000)},
			"somebody left behind":         {exec: container.Exec{Args: []string{"sh", "-c", "sleep 7 & echo gone"}}, out: "gone\n"},
		}
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				var out, errOut bytes.Buffer
				test.exec.Stdout, test.exec.Stderr = &out, &errOut
				code := expect.Value(d.Exec(d.ctx(), id, test.exec))(t)
				if code != test.code || out.String() != test.out || errOut.String() != test.errOut {
					t.Errorf("code %d, output %.80q (%d), errors %.80q (%d)", code, out.String(), out.Len(), errOut.String(), errOut.Len())
				}
			})
		}
		t.Run("every capability", func(t *testing.T) {
			var out bytes.Buffer
			e := container.Exec{Args: []string{"sh", "-c", "grep CapEff /proc/self/status"}, User: "root", Privileged: true, Stdout: &out}
			expect.Value(d.Exec(d.ctx(), id, e))(t)
			host := expect.Value(os.ReadFile("/proc/self/status"))(t)
			expect.Contains(t, string(host), strings.TrimSpace(out.String())+"\n", "what the device has")
		})
		t.Run("one writer for both", func(t *testing.T) {
			out, _, err := d.trySh(id, "echo out; echo err >&2")
			expect.True(t, (out == "out\nerr" || out == "err\nout") && err == nil, "got %q, %v", out, err)
		})
		t.Run("no such command", func(t *testing.T) {
			code, err := d.Exec(d.ctx(), id, container.Exec{Args: []string{"nonesuch"}})
			expect.True(t, code == 127 && err != nil, "code %d, %v", code, err)
		})
		t.Run("a writer that fails", func(t *testing.T) {
			_, err := d.Exec(d.ctx(), id, container.Exec{Args: []string{"seq", "1", "100000"}, Stdout: broken{}})
			expect.Error(t, err, io.ErrShortWrite, "error")
		})
		d.stop(id)
		expect.Error(t, expect.ErrorOf(d.Exec(d.ctx(), id, container.Exec{Args: []string{"true"}})), container.ErrNotRunning, "in a stopped container")
		expect.Error(t, expect.ErrorOf(d.Exec(d.ctx(), "nonesuch", container.Exec{Args: []string{"true"}})), container.ErrNotFound, "in no container")
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}

func TestExecOnTerminal(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		id := d.up(d.config("web", ""))
		in, keys := io.Pipe()
		screen, out := io.Pipe()
		resize := make(chan container.Size, 1)
		ended := make(chan error, 1)
		go func() {
			_, err := d.Exec(d.ctx(), id, container.Exec{Args: []string{"sh"}, TTY: true, Stdin: in, Stdout: out, Resize: resize})
			ended <- errors.Join(err, out.Close())
		}()
		shows := func(want string) {
			t.Helper()
			var seen strings.Builder
			block := make([]byte, 256)
			for !strings.Contains(seen.String(), want) {
				n, err := screen.Read(block)
				seen.Write(block[:n])
				if err != nil {
					t.Fatalf("%v after %q, want %q", err, seen.String(), want)
				}
			}
		}
		press := func(s string) {
			t.Helper()
			expect.Value(io.WriteString(keys, s))(t)
		}
		press("test -t 0 && echo on a $TERM\n")
		shows("on a xterm\r\n")
		resize <- container.Size{Columns: 123, Rows: 45}
		press("while :; do set -- $(stty size 2>/dev/null || busybox stty size); test \"$1\" = 45 && break; done; echo $1 by $2\n")
		shows("45 by 123\r\n")
		press("exit 3\n")
		expect.Value(io.Copy(io.Discard, screen))(t)
		check(t, <-ended)
	})
}

func TestExecEndsWithItsContext(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		id := d.up(d.config("web", ""))
		ctx, cancel := context.WithCancel(d.ctx())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := d.Exec(ctx, id, container.Exec{Args: []string{"sh", "-c", "sleep 9797 & sh -c 'sleep 9898; true'; true"}, Stdout: io.Discard})
			ended <- err
		}()
		expect.Eventually(d, "both of its commands run", func() bool {
			processes := d.sh(id, "ps")
			return strings.Contains(processes, "sleep 9797") && strings.Contains(processes, "sleep 9898")
		})
		cancel()
		expect.Error(t, expect.Receive(t, "it ends, long before the commands end by themselves", ended), context.Canceled, "error")
		expect.Eventually(d, "nothing it started runs", func() bool { return !strings.Contains(d.sh(id, "ps"), "sleep 9") })
		expect.Equal(t, expect.Value(filepath.Glob(filepath.Join(d.run, "exec", "*")))(t), nil, "left")
	})
}

// TestExecOfAKilledAgent: what an agent that was killed had run is ended by the next.
func TestExecOfAKilledAgent(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		id := d.up(d.config("web", ""))
		ended := make(chan error, 1)
		killed := d.Containers
		go func() {
			_, err := killed.Exec(d.ctx(), id, container.Exec{Args: []string{"sleep", "96"}})
			ended <- err
		}()
		expect.Eventually(d, "the command runs", func() bool { return strings.Contains(d.sh(id, "ps"), "sleep 96") })
		d.restart()
		expect.Equal(t, strings.Contains(d.sh(id, "ps"), "sleep 96"), false, "it still runs")
		<-ended
		expect.Equal(t, expect.Value(filepath.Glob(filepath.Join(d.run, "exec", "*")))(t), nil, "left")
	})
}

// A shim that was told to start a command waits until its output is read. An agent that was killed does not read it, and
// the next one must not wait for such a shim.
func TestACommandWhoseAgentWasKilledWhenItStarted(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		id := d.up(d.config("web", ""))
		e := &tasksapi.ExecProcessRequest{ContainerID: id, ExecID: "margolite-0123456789abcdef"}
		e.Spec = &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Process", Value: []byte(`{"args": ["sleep", "97"], "cwd": "/", "env": ["PATH=/bin"]}`)}
		dir := filepath.Join(d.run, "exec", id+"."+e.ExecID)
		e.Stdout, e.Stderr = filepath.Join(dir, "stdout"), os.DevNull
		check(t, os.MkdirAll(dir, 0o700))
		check(t, syscall.Mkfifo(e.Stdout, 0o600))
		tasks := d.client.TaskService()
		expect.Value(tasks.Exec(d.ctx(), e))(t)
		var starting sync.WaitGroup
		defer starting.Wait()
		starting.Go(func() { _, _ = tasks.Start(d.ctx(), &tasksapi.StartRequest{ContainerID: id, ExecID: e.ExecID}) })
		expect.Eventually(d, "it is being started", func() bool { return bytes.Contains(bytes.Join(commandLines(), nil), []byte("sleep\x0097")) })

		d.restart()
		expect.Equal(t, strings.Contains(d.sh(id, "ps"), "sleep 97"), false, "it still runs")
		expect.Equal(t, expect.Value(filepath.Glob(filepath.Join(d.run, "exec", "*")))(t), nil, "left")
	})
}

func TestManyExecsAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: a hundred commands")
	}
	onEach(t, func(t *testing.T, d *device) {
		id := d.up(d.config("web", ""))
		var group sync.WaitGroup
		for n := range 100 {
			group.Go(func() {
				var out bytes.Buffer
				code, err := d.Exec(d.ctx(), id, container.Exec{Args: []string{"sh", "-c", fmt.Sprintf("echo %d; seq 1 3000; exit %d", n, n%7)}, Stdout: &out})
				if want := fmt.Sprintf("%d\n%s", n, numbers(3000)); err != nil || code != n%7 || out.String() != want {
					t.Errorf("command %d: code %d, %d bytes of %d, %v", n, code, out.Len(), len(want), err)
				}
			})
		}
		group.Wait()
	})
}

func TestPreStopHooks(t *testing.T) {
	d := onOne(t)
	grace := 5 * time.Second
	c := d.config("web", "trap 'echo signal >> /data/order; exit' TERM; echo ready > /data/order; while :; do sleep 0.05; done")
	c.Service.StopGrace = &grace
	c.Service.Mounts = []compose.Mount{{Volume: "data", Target: "/data"}}
	c.Service.PreStop = []compose.Hook{
		{Command: []string{"sh", "-c", "echo $WHO >> /data/order"}, Environment: map[string]string{"WHO": "hook"}},
		{Command: []string{"nonesuch"}}, // is no reason to run on
		{Command: []string{"sh", "-c", "id -u >> /data/order"}, User: "12"},
	}
	id := d.up(c)
	order := filepath.Join(d.VolumeDir("shop", "data"), "order")
	expect.Eventually(d, "it runs", func() bool { text, _ := os.ReadFile(order); return string(text) == "ready\n" })
	check(t, os.Chmod(order, 0o666))
	d.stop(id)
	expect.Equal(t, string(expect.Value(os.ReadFile(order))(t)), "ready\nhook\n12\nsignal\n", "order")
}

// A container that does not obey the signal to stop is killed after its grace time: ten seconds, unless it says another.
func TestContainersThatDoNotObeyAreKilled(t *testing.T) {
	d := onOne(t)
	c := d.config("stubborn", "trap 'echo asked >> /data/order' TERM; echo ready > /data/order; while :; do sleep 0.05; done")
	c.Service.Mounts = []compose.Mount{{Volume: "data", Target: "/data"}}
	c.Service.StopGrace = nil
	expect.Equal(t, d.find(d.create(c)).Labels.StopGrace, 10*time.Second, "time to stop")
	grace := time.Second
	c.Service.StopGrace, c.Labels.Hash = &grace, "other"
	id := d.up(c)
	order := filepath.Join(d.VolumeDir("shop", "data"), "order")
	expect.Eventually(d, "it runs", func() bool { text, _ := os.ReadFile(order); return string(text) == "ready\n" })
	d.stop(id)
	expect.Equal(t, string(expect.Value(os.ReadFile(order))(t)), "ready\nasked\n", "order")
	expect.Equal(t, d.find(id).State == container.Running, false, "it runs")
}
