//go:build armboot

package arm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/margolite/margolite/test/expect"
)

// patience is for one thing to happen: an emulated processor is slow, and may
// have half of a real one.
const patience = 20 * time.Minute

// machine is a board with a disk. Its network is this machine's loopback
// interface, which it sees at host.
type machine struct {
	t       *testing.T
	board   board
	base    base
	dir     string
	console string // file
	cmd     *exec.Cmd
	ended   chan struct{} // closed when cmd has
	talk    int           // port that leads to the guest program
	page    int           // port that leads to the application
}

// host is this machine as the guest sees it.
const host = "10.0.2.2"

// applicationPort is where the application is published on the machine.
const applicationPort = 8090

// newMachine is switched off. What is in with is in the directory tools.
func newMachine(t *testing.T, b board, from base, logs string, with map[string]string) *machine {
	t.Helper()
	m := &machine{t: t, board: b, base: from, dir: t.TempDir(), console: filepath.Join(logs, b.arch+"-console.log")}
	files := filepath.Join(m.dir, "files")
	expect.Check(t, os.Mkdir(files, 0o755))
	for name, file := range with {
		expect.Check(t, do(t.Context(), "cp", file, filepath.Join(files, name)))
	}
	expect.Check(t, do(t.Context(), "mke2fs", "-q", "-t", "ext4", "-L", toolsLabel, "-d", files, filepath.Join(m.dir, "tools"), "256M"))
	expect.Check(t, do(t.Context(), "cp", "--sparse=always", from.disk(), m.disk()))
	expect.Check(t, os.RemoveAll(m.console)) // it is appended to
	t.Cleanup(m.cutPower)
	return m
}

func (m *machine) disk() string { return filepath.Join(m.dir, "disk") }

// powerOn switches the machine on, whatever comes of it.
func (m *machine) powerOn() {
	m.t.Helper()
	m.talk, m.page = freePort(m.t), freePort(m.t)
	args := append([]string{}, m.board.machine...)
	args = append(args,
		"-smp", "2", "-m", memory, "-nodefaults", "-display", "none", "-no-reboot",
		"-chardev", "file,id=console,append=on,path="+m.console, "-serial", "chardev:console",
		"-kernel", m.base.kernel(), "-initrd", m.base.initrd(),
		"-append", "root=LABEL="+systemLabel+" rw console=ttyAMA0 net.ifnames=0 panic=-1 udev.event_timeout=1200",
		"-drive", "if=none,id=tools,format=raw,readonly=on,file="+filepath.Join(m.dir, "tools"), "-device", "virtio-blk-device,drive=tools",
		"-drive", "if=none,id=disk,format=raw,file="+m.disk(), "-device", "virtio-blk-device,drive=disk",
		"-netdev", fmt.Sprintf("user,id=net,hostfwd=tcp:127.0.0.1:%d-:7000,hostfwd=tcp:127.0.0.1:%d-:%d", m.talk, m.page, applicationPort),
		"-device", "virtio-net-device,netdev=net", "-device", "virtio-rng-device",
	)
	m.cmd = exec.Command(m.board.system, args...)
	var said bytes.Buffer
	m.cmd.Stdout, m.cmd.Stderr = &said, &said
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	expect.Check(m.t, m.cmd.Start())
	m.ended = make(chan struct{})
	go func() {
		_ = m.cmd.Wait()
		if said.Len() > 0 {
			m.t.Logf("%s: %s", m.board.system, &said)
		}
		close(m.ended)
	}()
}

// cutPower ends the machine between two instructions, if it runs.
func (m *machine) cutPower() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	<-m.ended
	m.cmd = nil
}

// up waits until systemd has started everything.
func (m *machine) up() {
	m.t.Helper()
	m.eventually("it does not boot", func() error {
		_, err := m.ask([]string{"true"}, "")
		return err
	})
	var state string
	m.eventually("systemd does not come to an end", func() error { // it can wait itself only where there is a D-Bus
		state = strings.TrimSpace(m.try("systemctl", "is-system-running").Output)
		if state == "initializing" || state == "starting" {
			return errors.New(state)
		}
		return nil
	})
	if state != "running" {
		m.t.Errorf("systemd says that the machine is %s\n%s", state, m.try("systemctl", "--failed", "--no-pager").Output)
	}
}

// result is what a command in the machine came to.
type result struct {
	Code   int
	Output string
	Errors string
}

// run runs a command there, which has to succeed.
func (m *machine) run(args ...string) string {
	m.t.Helper()
	r := m.try(args...)
	if r.Code != 0 {
		m.t.Fatalf("%s: exit code %d\n%s%s", strings.Join(args, " "), r.Code, r.Output, r.Errors)
	}
	return r.Output
}

// try runs a command there.
func (m *machine) try(args ...string) result {
	m.t.Helper()
	r, err := m.ask(args, "")
	if err != nil {
		m.t.Fatalf("cannot run %s: %v", strings.Join(args, " "), err)
	}
	return r
}

// write writes a file there, which is whole when it has its name.
func (m *machine) write(path string, data []byte) {
	m.t.Helper()
	r, err := m.ask([]string{"sh", "-c", `umask 077; cat >"$0.part" && mv "$0.part" "$0"`, path}, string(data))
	expect.Require(m.t, err == nil && r.Code == 0, "cannot write %s: %v %s", path, err, r.Errors)
}

// decode runs a command there that prints JSON.
func (m *machine) decode(into any, args ...string) {
	m.t.Helper()
	if out := m.run(args...); json.Unmarshal([]byte(out), into) != nil {
		m.t.Fatalf("%s printed %s", strings.Join(args, " "), out)
	}
}

func (m *machine) ask(args []string, input string) (result, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	body, err := json.Marshal(map[string]any{"args": args, "input": input})
	if err != nil {
		return result{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/run", m.talk), bytes.NewReader(body))
	if err != nil {
		return result{}, err
	}
	request.Close = true
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return result{}, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return result{}, err
	}
	var r result
	if answer.StatusCode != http.StatusOK {
		return r, fmt.Errorf("%s: %s", answer.Status, text)
	}
	return r, json.Unmarshal(text, &r)
}

// eventually repeats what has no event to wait for while the machine runs.
func (m *machine) eventually(what string, try func() error) {
	m.t.Helper()
	deadline := time.After(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-m.ended:
			m.t.Fatalf("%s: the machine has ended\n%s", what, m.tail())
		case <-deadline:
			m.t.Fatalf("%s: %v\n%s", what, err, m.tail())
		}
	}
}

// tail is the end of what is on the console.
func (m *machine) tail() string {
	text, err := os.ReadFile(m.console)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

func freePort(t *testing.T) int {
	t.Helper()
	l := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
