package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"

	"github.com/margolite/margolite/test/wfmsim"
)

// ErrNotRunning is returned where nobody listens.
var ErrNotRunning = errors.New("no wfmsim is running there")

// Client asks a running wfmsim.
type Client struct {
	URL string // http://127.0.0.1:8480
	// For names the client that is meant where a request names none; empty: the default one.
	For string
}

// Info says where everything is.
func (c Client) Info(ctx context.Context) (Info, error) {
	return Ask[Info](ctx, c, "info", Request{})
}

// Publish makes a document part of the desired state.
func (c Client) Publish(ctx context.Context, document []byte) (wfmsim.Published, error) {
	return Ask[wfmsim.Published](ctx, c, "publish", Request{Document: document})
}

// Remove takes a deployment out of the desired state.
func (c Client) Remove(ctx context.Context, id string) (Removed, error) {
	return Ask[Removed](ctx, c, "remove", Request{Deployment: id})
}

// Ask has a verb carried out, and reads its answer.
func Ask[T any](ctx context.Context, c Client, verb string, r Request) (answer T, err error) {
	r.Client = cmp.Or(r.Client, c.For)
	body, err := json.Marshal(r)
	if err != nil {
		return answer, fmt.Errorf("cannot write request: %w", err)
	}
	target := strings.TrimSuffix(c.URL, "/") + "/v1/" + verb
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
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
