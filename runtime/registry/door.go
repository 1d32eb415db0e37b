package registry

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// door is what a host wants before it lets anybody in, and what it has been given.
type door struct {
	turn      chan struct{} // held by who looks: there is one token for all who wait for it
	challenge challenge
	tokens    map[string]token // by scope
}

// token opens a door for a while.
type token struct {
	value string
	until time.Time // zero: until it is refused
}

func (t token) counts() bool {
	return t.value != "" && (t.until.IsZero() || time.Now().Before(t.until))
}

// doorTo returns the door of a host; nil: it has wanted nothing yet.
func (c *Client) doorTo(u *url.URL) *door {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doors[u.Scheme+"://"+u.Host]
}

func (c *Client) makeDoor(u *url.URL) *door {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := u.Scheme + "://" + u.Host
	d := c.doors[at]
	if d == nil {
		d = &door{turn: make(chan struct{}, 1), tokens: make(map[string]token)}
		c.doors[at] = d
	}
	return d
}

func (d *door) take(ctx context.Context) error {
	select {
	case d.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *door) leave() { <-d.turn }

// authorize gives an attempt what its host wants.
func (c *Client) authorize(to *http.Request, r *request) error {
	d := c.doorTo(to.URL)
	if d == nil {
		return nil
	}
	ctx := to.Context()
	if err := d.take(ctx); err != nil {
		return err
	}
	defer d.leave()
	if d.challenge.scheme == "" { // its first answer is still being read
		return nil
	}
	host := to.URL.Host
	if d.challenge.scheme == "basic" {
		user, password, err := c.credentials(host)
		if err != nil {
			return err
		}
		if user == "" || password == "" {
			return fmt.Errorf("%s wants a password: %w", host, ErrDenied)
		}
		to.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
		r.fresh = true
		return nil
	}
	scopes := append(strings.Fields(d.challenge.parameters["scope"]), r.scope)
	slices.Sort(scopes)
	scopes = slices.Compact(scopes)
	scope := strings.Join(scopes, " ")
	t := d.tokens[scope]
	r.fresh = !t.counts()
	if r.fresh {
		var err error
		if t, err = c.token(ctx, host, d.challenge, scopes); err != nil {
			return fmt.Errorf("cannot get token for %s: %w", host, err)
		}
		d.tokens[scope] = t
	}
	to.Header.Set("Authorization", "Bearer "+t.value)
	return nil
}

// learn takes note of what a host wants that has refused an attempt, and says whether another one may help.
func (c *Client) learn(ctx context.Context, answer *http.Response, r *request) (bool, error) {
	wanted, ok := challengeOf(answer.Header)
	sent := answer.Request.Header.Get("Authorization")
	if !ok || sent != "" && r.fresh {
		return false, nil
	}
	d := c.makeDoor(answer.Request.URL)
	if err := d.take(ctx); err != nil {
		return false, err
	}
	defer d.leave()
	d.challenge = wanted
	for scope, t := range d.tokens {
		if sent == "Bearer "+t.value {
			delete(d.tokens, scope) // it does not count any more
		}
	}
	return true, nil
}
