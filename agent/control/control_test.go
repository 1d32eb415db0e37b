package control_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
)

// backend answers with what a test put into it.
type backend struct {
	status   control.Status
	events   chan control.Event
	upErr    error
	mu       sync.Mutex // of logs, which several callers ask for at once
	logs     control.LogsRequest
	exec     func(context.Context, control.ExecRequest, control.ExecStreams) (int, error)
	panicked chan string   // nil: nothing may
	lasting  chan struct{} // if not nil, polls and logs last until the caller leaves; what has begun is sent here
	site
}

func (b *backend) Status(context.Context) (*control.Status, error) { return &b.status, nil }
func (b *backend) Sync(ctx context.Context) error {
	b.last(ctx)
	return nil
}

func (b *backend) last(ctx context.Context) {
	if b.lasting != nil {
		b.lasting <- struct{}{}
		<-ctx.Done()
	}
}

func (b *backend) Capabilities(context.Context) (json.RawMessage, error) {
	return json.RawMessage(`{"properties":{"id":"edge-01"}}`), nil
}

func (b *backend) Metrics(context.Context) ([]byte, error) {
	return []byte("# TYPE margolite_panics_total counter\nmargolite_panics_total 0\n"), nil
}
func (b *backend) Panicked(what string, value any) { b.panicked <- fmt.Sprint(what, ": ", value) }

func (b *backend) Subscribe() (<-chan control.Event, func()) {
	if b.lasting != nil {
		b.lasting <- struct{}{}
	}
	return b.events, func() {}
}

func (b *backend) Logs(ctx context.Context, r control.LogsRequest, w io.Writer) error {
	b.last(ctx)
	if r.Deployment == "nonesuch" {
		return fmt.Errorf("deployment %q: %w", r.Deployment, control.ErrNotFound)
	}
	b.mu.Lock()
	b.logs = r // before the caller hears of it
	b.mu.Unlock()
	_, err := fmt.Fprintf(w, "%+v", r.Services)
	return err
}

func (b *backend) Exec(ctx context.Context, r control.ExecRequest, s control.ExecStreams) (int, error) {
	return b.exec(ctx, r, s)
}

func (b *backend) ComposePull(_ context.Context, r control.ComposeRequest, _ func(control.Event)) error {
	return b.tell(r)
}

func (b *backend) Unneeded(context.Context) ([]control.Unneeded, error) {
	return []control.Unneeded{{Kind: control.UnneededVolume, Project: "p", Name: "data", Bytes: 7}}, nil
}

func (b *backend) Prune(_ context.Context, items []control.Unneeded) ([]control.Unneeded, error) {
	return items, b.tell(items)
}

func (b *backend) ComposeUp(_ context.Context, r control.ComposeRequest, notify func(control.Event)) error {
	notify(control.Event{Kind: control.ServiceChanged, Service: "web", State: "running"})
	return b.upErr
}

func (b *backend) ComposeDown(_ context.Context, r control.DownRequest) error {
	return b.tell(r)
}

func (b *backend) ComposePs(context.Context, string) ([]control.Service, error) { return nil, nil }

// serve runs a server for b and returns a client of it, and the socket.
func serve(t *testing.T, b control.Backend) (*control.Client, string) {
	t.Helper()
	return serveWith(t, b, nil)
}

// serveWith is serve with a server that looks after its socket at each of ticks.
func serveWith(t *testing.T, b control.Backend, ticks <-chan time.Time) (*control.Client, string) {
	t.Helper()
	dir := expect.Value(os.MkdirTemp("/tmp", "control-"))(t) // paths of sockets are short
	path := filepath.Join(dir, "run", "control.sock")
	l := expect.Value(control.Listen(path))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- control.NewServer(b, slog.New(slog.DiscardHandler)).Run(ctx, l, ticks) }()
	t.Cleanup(func() {
		cancel()
		expect.Error(t, <-done, nil, "the server")
		os.RemoveAll(dir)
	})
	return control.Dial(path), path
}

func TestErrorsOfStreamsArrive(t *testing.T) {
	client, _ := serve(t, &backend{upErr: errors.New("key privileged of service web is not supported")})
	expect.ErrorWith(t, client.Logs(t.Context(), control.LogsRequest{Deployment: "nonesuch"}, io.Discard), "nonesuch", "logs")
	seen := 0
	err := client.ComposeUp(t.Context(), control.ComposeRequest{Project: "p"}, func(control.Event) { seen++ })
	expect.True(t, err != nil && strings.Contains(err.Error(), "privileged") && seen == 1, "compose up: %v after %d events", err, seen)
}

func TestLogsCarryTheRequest(t *testing.T) {
	b := &backend{}
	client, path := serve(t, b)
	seven, none := 7, 0
	for _, want := range []control.LogsRequest{
		{Deployment: "d"},
		{Deployment: "d", Services: []string{"a", "b"}, Tail: &seven, Follow: true, Timestamps: true, Prefix: control.PrefixNever, Color: true},
		{Deployment: "d", Tail: &none, Since: time.Unix(100, 5).UTC(), Until: time.Unix(200, 0).UTC(), Prefix: control.PrefixAlways},
	} {
		var out bytes.Buffer
		check(t, client.Logs(t.Context(), want, &out))
		if !reflect.DeepEqual(b.logs, want) || out.String() != fmt.Sprint(want.Services) {
			t.Errorf("the agent was asked %+v and answered %q, want %+v", b.logs, out.String(), want)
		}
	}
	for _, query := range []string{"tail=-1", "tail=few", "since=yesterday", "until=1", "prefix=sometimes"} {
		res, err := curl(t, path, http.MethodGet, "/v1/logs?deployment=d&"+query, "")
		expect.Equal(t, res, http.StatusBadRequest, "the answer to %s, %q,", query, err)
	}
}

// curl makes a request as a script does.
func curl(t *testing.T, path, method, url, body string) (int, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", path)
	}}}
	req := expect.Value(http.NewRequestWithContext(t.Context(), method, "http://margolite"+url, strings.NewReader(body)))(t)
	res := expect.Value(client.Do(req))(t)
	defer res.Body.Close()
	answer := expect.Value(io.ReadAll(res.Body))(t)
	return res.StatusCode, string(answer)
}

func TestEventsStreamUntilTheHandlerHasEnough(t *testing.T) {
	b := &backend{events: make(chan control.Event)}
	client, _ := serve(t, b)
	enough := errors.New("enough")
	err := client.Events(t.Context(), func() {
		go func() { b.events <- control.Event{Kind: control.ManifestAccepted, Version: 7} }()
	}, func(e control.Event) error {
		expect.True(t, e.Kind == control.ManifestAccepted && e.Version == 7, "event is %+v", e)
		return enough
	})
	expect.Error(t, err, enough, "events ended with")
}

// A stop does not wait for callers that read events.
func TestServerStopsWhileStreamsAreOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	l := expect.Value(control.Listen(path))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	server := control.NewServer(&backend{events: make(chan control.Event)}, slog.New(slog.DiscardHandler))
	go func() { done <- server.Run(ctx, l, nil) }()
	opened, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- control.Dial(path).Events(t.Context(), func() { close(opened) }, func(control.Event) error { return nil })
	}()
	<-opened
	cancel()
	expect.OK(t, <-done)
	expect.Error(t, <-ended, nil, "the listener")
}

func TestNobodyListensIsToldApart(t *testing.T) {
	client := control.Dial(filepath.Join(t.TempDir(), "control.sock"))
	expect.Error(t, expect.ErrorOf(client.Status(t.Context())), control.ErrNotRunning, "status")
	expect.Error(t, client.Ping(t.Context()), control.ErrNotRunning, "ping")
}

func TestPOL12SocketIsForOwnerAndGroup(t *testing.T) {
	_, path := serve(t, &backend{})
	info := expect.Value(os.Stat(path))(t)
	expect.Equal(t, info.Mode().Perm(), 0o660, "mode")
}

// When a cleanup deletes the socket or its directory, it is created again with its group,
// and open connections go on.
func TestADeletedSocketIsOpenedAgain(t *testing.T) {
	for name, deleted := range map[string]func(path string) error{
		"the file":      os.Remove,
		"the directory": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
	} {
		t.Run(name, func(t *testing.T) {
			b, ticks := &backend{events: make(chan control.Event)}, make(chan time.Time)
			client, path := serveWith(t, b, ticks)
			group := os.Getegid()
			if os.Geteuid() == 0 {
				group = 4711
			}
			look := func() {
				ticks <- time.Time{}
				ticks <- time.Time{} // it is taken once the one before was dealt with
			}
			shared := os.Chown(path, -1, group)
			look()
			err := client.Events(t.Context(), func() {
				err := errors.Join(shared, deleted(path))
				look()
				_, statusErr := client.Status(t.Context())
				file, fileErr := os.Lstat(path)
				dir, dirErr := os.Stat(filepath.Dir(path))
				if err := errors.Join(err, statusErr, fileErr, dirErr); err != nil {
					t.Error(err)
				} else if file.Mode() != os.ModeSocket|0o660 || int(file.Sys().(*syscall.Stat_t).Gid) != group || dir.Mode().Perm() != 0o711 {
					t.Errorf("the socket is %s of group %d, its directory %s", file.Mode(), file.Sys().(*syscall.Stat_t).Gid, dir.Mode())
				}
				go func() { b.events <- control.Event{} }()
			}, func(control.Event) error { return io.EOF })
			expect.Error(t, err, io.EOF, "the stream that was open ended with")
		})
	}
	t.Run("unless another agent listens there", func(t *testing.T) {
		ticks := make(chan time.Time)
		_, path := serveWith(t, &backend{}, ticks)
		other := expect.Value(control.Listen(path))(t) // replaces it
		defer other.Close()
		before, err := os.Lstat(path)
		ticks <- time.Time{}
		ticks <- time.Time{}
		if after, afterErr := os.Lstat(path); err != nil || afterErr != nil || !os.SameFile(before, after) {
			t.Errorf("its socket was replaced: %v", afterErr)
		}
	})
}

func TestASocketLeftBehindIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	check(t, syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0))
	l := expect.Value(control.Listen(path))(t)
	l.Close()
}

var check = expect.Check
