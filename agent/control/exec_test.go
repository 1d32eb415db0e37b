package control_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
)

// execute runs commands as processes of the machine, as a backend would in a
// container.
func execute(ctx context.Context, r control.ExecRequest, s control.ExecStreams) (int, error) {
	if r.Service == "nonesuch" {
		return 0, fmt.Errorf("service %q: %w", r.Service, control.ErrNotFound)
	}
	cmd := exec.CommandContext(ctx, r.Args[0], r.Args[1:]...)
	cmd.WaitDelay = time.Second
	cmd.Env = r.Env
	cmd.Stdout, cmd.Stderr = s.Stdout, s.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() {
		if s.Stdin != nil {
			_, _ = io.Copy(in, s.Stdin)
		}
		in.Close()
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		return exit.ExitCode(), nil
	}
	return 0, err
}

func shell(script string) control.ExecRequest {
	return control.ExecRequest{Project: "p", Service: "web", Args: []string{"/bin/sh", "-c", script}}
}

// clumsy panics when it is asked to poll.
type clumsy struct{ *backend }

func (clumsy) Sync(context.Context) error { panic("no such thing") }

// A request or a command that panics fails, and the server goes on.
func TestAPanicIsTheEndOfOneRequest(t *testing.T) {
	b := &backend{panicked: make(chan string, 3), exec: func(context.Context, control.ExecRequest, control.ExecStreams) (int, error) {
		panic("no such thing")
	}}
	client, _ := serve(t, clumsy{b})
	exec := func(detach bool) error {
		_, err := client.Exec(t.Context(), control.ExecRequest{Deployment: "d", Service: "s", Args: []string{"true"}, Detach: detach}, control.ExecStreams{})
		return err
	}
	for _, c := range []struct {
		err   error
		route string
	}{{client.Sync(t.Context()), "/v1/sync"}, {exec(false), "/v1/exec"}, {exec(true), "/v1/exec"}} {
		if c.err == nil || !strings.Contains(c.err.Error(), "internal error") {
			t.Errorf("error is %v", c.err)
		}
		if told := <-b.panicked; !strings.Contains(told, c.route) || !strings.Contains(told, "no such thing") {
			t.Errorf("the backend is told %q", told)
		}
	}
}

func TestExecCarriesStreamsAndExitCode(t *testing.T) {
	client, _ := serve(t, &backend{exec: execute})
	var out, errOut bytes.Buffer
	r := shell(`read line; echo "out $line $NAME"; echo err >&2; exit 7`)
	r.Env = []string{"NAME=value"}
	code, err := client.Exec(t.Context(), r, control.ExecStreams{Stdin: strings.NewReader("in\n"), Stdout: &out, Stderr: &errOut})
	if code != 7 || err != nil || out.String() != "out in value\n" || errOut.String() != "err\n" {
		t.Errorf("code %d, %v, stdout %q, stderr %q", code, err, out.String(), errOut.String())
	}
	r.Project, r.Deployment = "", "d"
	if code, err := client.Exec(t.Context(), r, control.ExecStreams{}); code != 7 || err != nil {
		t.Errorf("without streams: code %d, %v", code, err)
	}
}

// More than all buffers hold goes both ways, and nothing is lost.
func TestExecCarriesMuch(t *testing.T) {
	client, _ := serve(t, &backend{exec: execute})
	much := strings.Repeat("0123456789abcde\n", 64<<10)
	var out bytes.Buffer
	code, err := client.Exec(t.Context(), shell("cat"), control.ExecStreams{Stdin: strings.NewReader(much), Stdout: &out})
	if code != 0 || err != nil || out.String() != much {
		t.Errorf("code %d, %v, %d of %d bytes came back", code, err, out.Len(), len(much))
	}
	out.Reset()
	code, err = client.Exec(t.Context(), shell("exit 3"), control.ExecStreams{Stdin: strings.NewReader(much), Stdout: &out})
	expect.True(t, code == 3 && err == nil, "a command that reads nothing: code %d, %v", code, err)
}

func TestExecTellsWhyItCannot(t *testing.T) {
	client, _ := serve(t, &backend{exec: execute})
	r := shell("true")
	r.Service = "nonesuch"
	expect.ErrorWith(t, expect.ErrorOf(client.Exec(t.Context(), r, control.ExecStreams{})), `service "nonesuch": not found`, "an unknown service")
	r.Detach = true
	if _, err := client.Exec(t.Context(), r, control.ExecStreams{}); err == nil || !strings.Contains(err.Error(), `service "nonesuch": not found`) {
		t.Errorf("an unknown service, detached: %v", err)
	}
}

func TestExecEndsLikeAShellThatCannotRunIt(t *testing.T) {
	client, _ := serve(t, &backend{exec: func(context.Context, control.ExecRequest, control.ExecStreams) (int, error) {
		return 127, errors.New("no such program")
	}})
	for _, tty := range []bool{false, true} {
		r := shell("true")
		r.TTY = tty
		var out, errOut bytes.Buffer
		code, err := client.Exec(t.Context(), r, control.ExecStreams{Stdout: &out, Stderr: &errOut})
		if text := out.String() + errOut.String(); code != 127 || err != nil || strings.TrimSpace(text) != "no such program" || (out.Len() > 0) != tty {
			t.Errorf("terminal %v: code %d, %v, said %q and %q", tty, code, err, out.String(), errOut.String())
		}
	}
}

// A command ends with the one who wanted it, also while it reads nothing of
// what was sent to it.
func TestExecEndsWithItsCaller(t *testing.T) {
	ended := make(chan error, 1)
	client, _ := serve(t, &backend{exec: func(ctx context.Context, r control.ExecRequest, s control.ExecStreams) (int, error) {
		_, err := io.WriteString(s.Stdout, "ready\n")
		if err == nil {
			<-ctx.Done()
			err = ctx.Err()
		}
		ended <- err
		return 0, err
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ready := writerFunc(func(p []byte) (int, error) {
		cancel()
		return len(p), nil
	})
	_, err := client.Exec(ctx, shell("true"), control.ExecStreams{Stdin: endless{}, Stdout: ready})
	expect.Error(t, err, context.Canceled, "exec ended with")
	select {
	case err := <-ended:
		expect.Error(t, err, context.Canceled, "the command ended with")
	case <-time.After(10 * time.Second):
		t.Fatal("the command still runs")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// endless is input that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestExecTellsTheSizeOfTheTerminal(t *testing.T) {
	sizes := make(chan control.Size)
	client, _ := serve(t, &backend{exec: func(ctx context.Context, r control.ExecRequest, s control.ExecStreams) (int, error) {
		if !r.TTY {
			return 0, errors.New("no terminal was asked for")
		}
		for range 2 {
			select {
			case sizes <- <-s.Resize:
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		return 0, nil
	}})
	resize := make(chan control.Size)
	done := make(chan error, 1)
	r := shell("true")
	r.TTY = true
	go func() {
		_, err := client.Exec(t.Context(), r, control.ExecStreams{Resize: resize})
		done <- err
	}()
	for _, want := range []control.Size{{Columns: 80, Rows: 24}, {Columns: 300, Rows: 1}} {
		resize <- want
		expect.Equal(t, <-sizes, want, "the size")
	}
	expect.OK(t, <-done)
}

func TestDetachedCommandsEndWithTheServer(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	b := &backend{exec: func(ctx context.Context, r control.ExecRequest, s control.ExecStreams) (int, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return 0, ctx.Err()
	}}
	t.Run("server", func(t *testing.T) {
		client, _ := serve(t, b)
		r := shell("sleep 1000")
		r.Detach = true
		expect.Value(client.Exec(t.Context(), r, control.ExecStreams{}))(t)
		<-began
		select {
		case <-ended:
			t.Error("it ended with the request")
		default:
		}
	})
	select {
	case <-ended:
	default:
		t.Error("the server is gone, the command is not")
	}
}

// A request without an upgrade is refused, and a malformed frame ends the connection.
func TestExecSpeaksItsProtocolOnly(t *testing.T) {
	ended := make(chan struct{})
	_, path := serve(t, &backend{exec: func(ctx context.Context, r control.ExecRequest, s control.ExecStreams) (int, error) {
		<-ctx.Done()
		close(ended)
		return 0, ctx.Err()
	}})
	const body = `{"project":"p","service":"web","args":["true"]}`
	ask := func(header string) (net.Conn, string) {
		conn := expect.Value(net.Dial("unix", path))(t)
		t.Cleanup(func() { conn.Close() })
		fmt.Fprintf(conn, "POST /v1/compose/exec HTTP/1.1\r\nHost: margolite\r\n%sContent-Length: %d\r\n\r\n%s", header, len(body), body)
		answer := make([]byte, 12)
		expect.Value(io.ReadFull(conn, answer))(t)
		return conn, string(answer)
	}
	if _, answer := ask(""); answer != "HTTP/1.1 400" {
		t.Errorf("without an upgrade: %q", answer)
	}
	conn, answer := ask("Connection: Upgrade\r\nUpgrade: " + control.ExecProtocol + "\r\n")
	expect.Require(t, answer == "HTTP/1.1 101", "with an upgrade: %q", answer)
	fmt.Fprint(conn, "\x00\xff\xff\xff\xff")
	<-ended
}
