package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"time"
)

// ErrNotRunning is returned if nothing listens on the control socket.
var ErrNotRunning = errors.New("the agent is not running")

const maxAnswerBytes = 16 << 20

// Client talks to the agent over its control socket.
type Client struct {
	path string
	http *http.Client
}

// Dial returns a client for the socket at path. It connects with each call.
func Dial(path string) *Client {
	return &Client{path: path, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx, path)
		},
		DisableKeepAlives: true,
	}}}
}

// dial connects to the socket at path, and retries while the kernel's connection queue is full.
func dial(ctx context.Context, path string) (net.Conn, error) {
	d := net.Dialer{Deadline: time.Now().Add(5 * time.Second)}
	for {
		conn, err := d.DialContext(ctx, "unix", path)
		if !errors.Is(err, syscall.EAGAIN) || time.Now().After(d.Deadline) {
			return conn, err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Ping fails unless an agent listens.
func (c *Client) Ping(ctx context.Context) error {
	conn, err := dial(ctx, c.path)
	if err != nil {
		return c.connectError(err)
	}
	return conn.Close()
}

// Status returns the state of the device.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	var st Status
	return &st, c.call(ctx, http.MethodGet, "/v1/status", nil, &st)
}

// Capabilities returns the capabilities document of the wire.
func (c *Client) Capabilities(ctx context.Context) (json.RawMessage, error) {
	return ask[json.RawMessage](ctx, c, http.MethodGet, "/v1/capabilities", nil)
}

// Sync polls the WFM now and waits for the outcome.
func (c *Client) Sync(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/v1/sync", nil, nil)
}

// AcceptRollback makes the agent accept a manifest that was refused for its version.
func (c *Client) AcceptRollback(ctx context.Context, r RollbackRequest) error {
	return c.call(ctx, http.MethodPost, "/v1/accept-rollback", r, nil)
}

// Approve permits a pending change.
func (c *Client) Approve(ctx context.Context, r AnswerRequest) error {
	return c.call(ctx, http.MethodPost, "/v1/approve", r, nil)
}

// Reject forbids a change for good.
func (c *Client) Reject(ctx context.Context, r AnswerRequest) error {
	return c.call(ctx, http.MethodPost, "/v1/reject", r, nil)
}

// Hold takes or extends an update lock.
func (c *Client) Hold(ctx context.Context, r HoldRequest) (Lock, error) {
	return ask[Lock](ctx, c, http.MethodPost, "/v1/hold", r)
}

// Release releases update locks and returns them.
func (c *Client) Release(ctx context.Context, r ReleaseRequest) ([]Lock, error) {
	return ask[[]Lock](ctx, c, http.MethodPost, "/v1/release", r)
}

// Rollback returns a deployment to its previous revision.
func (c *Client) Rollback(ctx context.Context, r ReturnRequest) error {
	return c.call(ctx, http.MethodPost, "/v1/rollback", r, nil)
}

// History returns entries of the journal, oldest first.
func (c *Client) History(ctx context.Context, r HistoryRequest) ([]Entry, error) {
	return ask[[]Entry](ctx, c, http.MethodGet, "/v1/history?"+r.query().Encode(), nil)
}

// VerifyHistory checks the journal.
func (c *Client) VerifyHistory(ctx context.Context) (Verification, error) {
	return ask[Verification](ctx, c, http.MethodGet, "/v1/history/verify", nil)
}

// Backup returns a copy of the agent's database, and its size.
func (c *Client) Backup(ctx context.Context) (io.ReadCloser, int64, error) {
	res, err := c.do(ctx, http.MethodGet, "/v1/backup", nil)
	if err != nil {
		return nil, 0, err
	}
	return res.Body, res.ContentLength, nil
}

// Events calls handle for every event until ctx ends, the agent goes away, or handle returns an
// error, which Events returns. opened, if not nil, is called once no later event can be missed.
func (c *Client) Events(ctx context.Context, opened func(), handle func(Event) error) error {
	return c.stream(ctx, http.MethodGet, "/v1/events", nil, opened, handle)
}

// Metrics copies all metrics to w as text.
func (c *Client) Metrics(ctx context.Context, w io.Writer) error {
	return c.copy(ctx, "/metrics", w)
}

// Logs copies the output of services to w.
func (c *Client) Logs(ctx context.Context, r LogsRequest, w io.Writer) error {
	return c.copy(ctx, within(r.Project)+"/logs?"+r.query().Encode(), w)
}

// within is the base of routes about a project's containers; empty: about deployments.
func within(project string) string {
	if project != "" {
		return "/v1/compose"
	}
	return "/v1"
}

// ComposeUp starts a Compose project.
func (c *Client) ComposeUp(ctx context.Context, r ComposeRequest, notify func(Event)) error {
	return c.compose(ctx, "/v1/compose/up", r, notify)
}

// ComposePull pulls the images of a Compose project.
func (c *Client) ComposePull(ctx context.Context, r ComposeRequest, notify func(Event)) error {
	return c.compose(ctx, "/v1/compose/pull", r, notify)
}

func (c *Client) compose(ctx context.Context, path string, r ComposeRequest, notify func(Event)) error {
	finished := false
	err := c.stream(ctx, http.MethodPost, path, r, nil, func(e Event) error {
		if e.Kind != Done {
			notify(e)
			return nil
		}
		finished = true
		if e.Error != nil {
			return errors.New(e.Error.Message)
		}
		return nil
	})
	if err == nil && !finished {
		err = errors.New("the agent stopped before it was done")
	}
	return err
}

// ComposeDown removes a Compose project.
func (c *Client) ComposeDown(ctx context.Context, r DownRequest) error {
	return c.call(ctx, http.MethodPost, "/v1/compose/down", r, nil)
}

// Unneeded lists what nothing on the device needs.
func (c *Client) Unneeded(ctx context.Context) ([]Unneeded, error) {
	return ask[[]Unneeded](ctx, c, http.MethodGet, "/v1/prune", nil)
}

// Prune removes those items that are unneeded.
func (c *Client) Prune(ctx context.Context, items []Unneeded) ([]Unneeded, error) {
	return ask[[]Unneeded](ctx, c, http.MethodPost, "/v1/prune", items)
}

// ComposePs lists the services of a Compose project; empty: of all.
func (c *Client) ComposePs(ctx context.Context, project string) ([]Service, error) {
	return ask[[]Service](ctx, c, http.MethodGet, "/v1/compose/ps?project="+url.QueryEscape(project), nil)
}

func (c *Client) copy(ctx context.Context, path string, w io.Writer) error {
	res, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(w, res.Body); err != nil && ctx.Err() == nil {
		return fmt.Errorf("cannot read the agent's answer: %w", err)
	}
	return nil
}

func (c *Client) stream(ctx context.Context, method, path string, body any, opened func(), handle func(Event) error) error {
	res, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if opened != nil {
		opened()
	}
	dec := json.NewDecoder(res.Body)
	for {
		var e Event
		switch err := dec.Decode(&e); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("cannot read events: %w", err)
		}
		if err := handle(e); err != nil {
			return err
		}
	}
}

func ask[A any](ctx context.Context, c *Client, method, path string, body any) (answer A, err error) {
	err = c.call(ctx, method, path, body, &answer)
	return answer, err
}

func (c *Client) call(ctx context.Context, method, path string, body, out any) error {
	res, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswerBytes)).Decode(out); err != nil {
		return fmt.Errorf("cannot read the agent's answer: %w", err)
	}
	return nil
}

// do makes a request. An unsuccessful answer becomes an error in the agent's own words. With a
// protocol, the connection may be upgraded to it.
func (c *Client) do(ctx context.Context, method, path string, body any, protocol ...string) (*http.Response, error) {
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("cannot encode the request: %w", err)
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://margolite"+path, payload)
	if err != nil {
		return nil, err
	}
	for _, p := range protocol {
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", p)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.connectError(err)
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, failureOf(res)
}

func failureOf(res *http.Response) error {
	var f failure
	if err := json.NewDecoder(io.LimitReader(res.Body, maxRequestBytes)).Decode(&f); err != nil || f.Error == "" {
		f.Error = res.Status
	}
	return &refusal{f.Error, res.StatusCode}
}

// refusal is an unsuccessful answer in the agent's words. It matches the Backend's errors.
type refusal struct {
	text string
	code int
}

func (r *refusal) Error() string { return r.text }

func (r *refusal) Is(target error) bool {
	return r.code == codeOf(target) && r.code != http.StatusInternalServerError
}

func (c *Client) connectError(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: nothing listens on %s", ErrNotRunning, c.path)
	}
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("cannot open control socket %s: permission denied", c.path)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("the agent on %s hung up: it is stopping or has too many clients", c.path)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return fmt.Errorf("cannot reach the agent on %s: %w", c.path, err)
}
