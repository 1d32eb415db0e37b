package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	maxToken    = 1 << 20 // bytes of an answer with a token
	longestTime = 24 * time.Hour
)

var errNoToken = errors.New("there is none in the answer")

// token gets a token from the service that a host names. Where there are credentials it is asked for by POST (OAuth 2),
// and by GET of a service that cannot do that.
func (c *Client) token(ctx context.Context, host string, wanted challenge, scopes []string) (token, error) {
	realm, err := url.Parse(wanted.parameters["realm"])
	if err != nil || realm.Host == "" || realm.Scheme != "https" && realm.Scheme != "http" {
		return token{}, errors.New("it names no service that has one")
	}
	realm.User, realm.Fragment = nil, ""
	user, secret, err := c.credentials(host)
	if err != nil {
		return token{}, err
	}
	service := wanted.parameters["service"]
	if secret != "" {
		form := url.Values{"service": {service}, "client_id": {agent}, "scope": {strings.Join(scopes, " ")}}
		if user == "" {
			form.Set("grant_type", "refresh_token")
			form.Set("refresh_token", secret)
		} else {
			form.Set("grant_type", "password")
			form.Set("username", user)
			form.Set("password", secret)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, realm.String(), strings.NewReader(form.Encode()))
		if err != nil {
			return token{}, err
		}
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
		t, err := c.exchange(request)
		if !isUnknownMethod(err) {
			return t, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, realm.String(), nil)
	if err != nil {
		return token{}, err
	}
	query := request.URL.Query()
	if service != "" {
		query.Add("service", service)
	}
	for _, scope := range scopes {
		query.Add("scope", scope)
	}
	request.URL.RawQuery = query.Encode()
	if secret != "" {
		request.SetBasicAuth(user, secret)
	}
	return c.exchange(request)
}

// isUnknownMethod says that a service may know no POST: they have several ways of saying so, one of which is also what
// others say of a wrong password.
func isUnknownMethod(err error) bool {
	var status *StatusError
	if !errors.As(err, &status) {
		return false
	}
	switch status.Code {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusNotFound, http.StatusMethodNotAllowed:
		return true
	}
	return false
}

// exchange asks a service for a token.
func (c *Client) exchange(request *http.Request) (token, error) {
	request.Header.Set("User-Agent", agent)
	client := http.Client{Transport: c.transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		first := via[0].URL
		switch {
		case len(via) >= maxRedirects:
			return errRedirects
		case next.URL.Scheme == first.Scheme && next.URL.Host == first.Host:
		case next.Method == http.MethodPost: // with what is secret
			return fmt.Errorf("its service at %s sends us to %s", first.Host, next.URL.Host)
		default:
			next.Header.Del("Authorization")
		}
		next.Header.Del("Referer")
		return nil
	}}
	answer, err := client.Do(request)
	if err != nil {
		return token{}, err
	}
	if answer.StatusCode < 200 || answer.StatusCode >= 300 {
		return token{}, statusError(answer)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxToken))
	if err != nil {
		return token{}, err
	}
	return tokenIn(data, time.Now())
}

// tokenIn reads the answer of a token service that was given at a time.
func tokenIn(data []byte, now time.Time) (token, error) {
	var said struct {
		Token       string  `json:"token"`
		AccessToken string  `json:"access_token"` // the same, in OAuth 2
		ExpiresIn   float64 `json:"expires_in"`   // seconds
	}
	if err := json.Unmarshal(data, &said); err != nil {
		return token{}, errNoToken // json's error could quote it
	}
	t := token{value: said.AccessToken}
	if t.value == "" {
		t.value = said.Token
	}
	if t.value == "" {
		return token{}, errNoToken
	}
	if said.ExpiresIn > 0 {
		t.until = now.Add(time.Duration(min(said.ExpiresIn, longestTime.Seconds()) * float64(time.Second)))
	}
	return t, nil
}
