package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
)

const (
	tokenTimeout = time.Minute
	maxToken     = 1 << 20 // bytes of an answer with a token
	longestTime  = 24 * time.Hour
)

// authorizer wraps containerd's, which caches a failed token request as a token, and sends
// refused passwords and tokens again. Its uses are serialised: containerd's has a data race
// while it fetches a token.
type authorizer struct {
	create  func() docker.Authorizer
	turn    chan struct{} // holds the request whose turn it is, which alone may use the next
	current docker.Authorizer
}

// Authorize adds the authorization that the host has asked for.
func (a *authorizer) Authorize(ctx context.Context, r *http.Request) error {
	return a.inTurn(ctx, func() error {
		err := a.current.Authorize(ctx, r)
		if err != nil {
			a.current = a.create()
		}
		return err
	})
}

// AddResponses learns the host's challenge from a 401.
func (a *authorizer) AddResponses(ctx context.Context, answers []*http.Response) error {
	return a.inTurn(ctx, func() error {
		switch sent, _, _ := strings.Cut(answers[len(answers)-1].Request.Header.Get("Authorization"), " "); {
		case sent == "Bearer" && !slices.ContainsFunc(answers[:len(answers)-1], isUnauthorized): // the token may be an old one
			a.current = a.create()
		case sent != "":
			return fmt.Errorf("it was refused: %w", errdefs.ErrNotImplemented) // the 401 is the answer
		}
		return a.current.AddResponses(ctx, answers)
	})
}

func (a *authorizer) inTurn(ctx context.Context, do func() error) error {
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
		return do()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func isUnauthorized(answer *http.Response) bool { return answer.StatusCode == http.StatusUnauthorized }

// Redirect is a CheckRedirect that sends secrets only to the host they were meant for.
func Redirect(next *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) >= maxRedirects:
		return errors.New("too many redirects")
	case next.URL.Scheme == first.Scheme && next.URL.Host == first.Host:
	case next.Method == http.MethodPost: // with what is secret
		return fmt.Errorf("the token service at %s redirects to %s", first.Host, next.URL.Host)
	default:
		next.Header.Del("Authorization")
	}
	next.Header.Del("Referer")
	return nil
}

// tokens is the transport to token services. It bounds and normalises their answers: containerd
// only accepts whole seconds and RFC 3339 times, and quotes what it cannot read in its errors.
type tokens struct {
	next  http.RoundTripper
	plain bool // the registry itself speaks plain HTTP
}

func (t tokens) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !t.plain {
		return nil, fmt.Errorf("its token service at %s uses plain HTTP, which would expose the password", r.URL.Host)
	}
	answer, err := t.next.RoundTrip(r)
	if err != nil || answer.StatusCode >= 400 {
		return answer, err
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 { // a redirect, or what containerd would look for a token in
		answer.Body = http.NoBody
		return answer, nil
	}
	if typeOf(answer) == "text/html" {
		return nil, ErrPage
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxToken))
	if err != nil {
		return nil, err
	}
	if data, err = tokenIn(data); err != nil {
		return nil, err
	}
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	return answer, nil
}

var errNoToken = errors.New("the answer has no token")

func tokenIn(data []byte) ([]byte, error) {
	var said struct {
		Token       string  `json:"token"`
		AccessToken string  `json:"access_token"` // the same, in OAuth 2
		ExpiresIn   float64 `json:"expires_in"`   // seconds
	}
	if json.Unmarshal(data, &said) != nil { // its error could quote a token
		return nil, errNoToken
	}
	if said.AccessToken == "" {
		said.AccessToken = said.Token
	}
	if said.AccessToken == "" {
		return nil, errNoToken
	}
	said.Token = said.AccessToken
	said.ExpiresIn = math.Ceil(min(max(said.ExpiresIn, 0), longestTime.Seconds()))
	return json.Marshal(said)
}
