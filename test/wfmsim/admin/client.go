package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/record"
)

// ErrNotRunning is returned where nobody listens.
var ErrNotRunning = errors.New("no wfmsim is running there")

// Client asks a running wfmsim.
type Client struct {
	URL string // http://127.0.0.1:8480
	// For names the client whose desired state is meant; empty: the default one.
	For string
}

// Info says where everything is.
func (c Client) Info(ctx context.Context) (Info, error) {
	return call[Info](ctx, c, http.MethodGet, "info", nil, nil)
}

// Publish makes a document part of the desired state.
func (c Client) Publish(ctx context.Context, document []byte) (wfmsim.Published, error) {
	return call[wfmsim.Published](ctx, c, http.MethodPost, "deployments", nil, document)
}

// Remove takes a deployment out of the desired state.
func (c Client) Remove(ctx context.Context, id string) (Removed, error) {
	return call[Removed](ctx, c, http.MethodDelete, "deployments/"+url.PathEscape(id), nil, nil)
}

// Deployments lists the desired state.
func (c Client) Deployments(ctx context.Context) ([]wfmsim.Deployed, error) {
	return call[[]wfmsim.Deployed](ctx, c, http.MethodGet, "deployments", nil, nil)
}

// Statuses gives the reports with a number above after, and waits for one that
// long where there are none. An empty deployment means all.
func (c Client) Statuses(ctx context.Context, deployment string, after int, wait time.Duration) ([]wfmsim.Report, error) {
	query := url.Values{"deployment": {deployment}, "after": {strconv.Itoa(after)}}
	if wait > 0 {
		query.Set("wait", wait.String())
	}
	return call[[]wfmsim.Report](ctx, c, http.MethodGet, "statuses", query, nil)
}

// Devices gives the capabilities that were reported, by all clients unless For
// names one.
func (c Client) Devices(ctx context.Context) ([]wfmsim.Device, error) {
	return call[[]wfmsim.Device](ctx, c, http.MethodGet, "capabilities", nil, nil)
}

// Faults lists what is to go wrong with a server: "wfm", "registry" or "mis".
func (c Client) Faults(ctx context.Context, server string) ([]fault.Fault, error) {
	return call[[]fault.Fault](ctx, c, http.MethodGet, "faults/"+server, nil, nil)
}

// Inject lets something go wrong.
func (c Client) Inject(ctx context.Context, server string, f fault.Fault) (fault.Fault, error) {
	body, err := json.Marshal(f)
	if err != nil {
		return f, fmt.Errorf("cannot write fault: %w", err)
	}
	return call[fault.Fault](ctx, c, http.MethodPost, "faults/"+server, nil, body)
}

// Clear ends the faults of an endpoint, or all where it is empty.
func (c Client) Clear(ctx context.Context, server, endpoint string) ([]fault.Fault, error) {
	return call[[]fault.Fault](ctx, c, http.MethodDelete, "faults/"+server, url.Values{"endpoint": {endpoint}}, nil)
}

// Requests gives the last requests of a server.
func (c Client) Requests(ctx context.Context, server string, last int) ([]record.Request, error) {
	return call[[]record.Request](ctx, c, http.MethodGet, "requests/"+server, url.Values{"last": {strconv.Itoa(last)}}, nil)
}

// Change does to a client what the commands of that name do: restart or forget.
func (c Client) Change(ctx context.Context, client, change string) error {
	_, err := call[Info](ctx, c, http.MethodPost, "clients/"+url.PathEscape(client)+"/"+change, nil, nil)
	return err
}

// SetVersion gives the client's present manifest another version.
func (c Client) SetVersion(ctx context.Context, client string, version uint64) error {
	_, err := call[Info](ctx, c, http.MethodPut, "clients/"+url.PathEscape(client)+"/version", nil, []byte(strconv.FormatUint(version, 10)))
	return err
}

// Pending lists the clients that wait to be approved.
func (c Client) Pending(ctx context.Context) ([]wfmsim.Pending, error) {
	return call[[]wfmsim.Pending](ctx, c, http.MethodGet, "pending", nil, nil)
}

// Approve lets one of them in.
func (c Client) Approve(ctx context.Context, fingerprint string) (Approved, error) {
	return call[Approved](ctx, c, http.MethodPost, "pending/"+url.PathEscape(fingerprint)+"/approve", nil, nil)
}

// call makes one request and reads its answer.
func call[T any](ctx context.Context, c Client, method, path string, query url.Values, body []byte) (answer T, err error) {
	if query == nil {
		query = url.Values{}
	}
	if c.For != "" {
		query.Set("client", c.For)
	}
	target := strings.TrimSuffix(c.URL, "/") + "/v1/" + path + "?" + query.Encode()
	request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return answer, fmt.Errorf("cannot ask %s: %w", c.URL, err)
	}
	response, err := http.DefaultClient.Do(request)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return answer, fmt.Errorf("cannot ask %s: %w", c.URL, ErrNotRunning)
	case err != nil:
		return answer, fmt.Errorf("cannot ask %s: %w", c.URL, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return answer, fmt.Errorf("cannot ask %s: %w", c.URL, err)
	}
	if response.StatusCode != http.StatusOK {
		var failure Failure
		if json.Unmarshal(text, &failure) == nil && failure.Message != "" {
			return answer, errors.New(failure.Message)
		}
		return answer, fmt.Errorf("cannot ask %s: it answered %s", c.URL, response.Status)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return answer, fmt.Errorf("cannot understand the answer of %s: %w", c.URL, err)
	}
	return answer, nil
}
