package registry

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/test/expect"
)

// answering is a host that answers every request.
type answering func(*http.Request) *http.Response

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := a(r)
	answer.Request = r
	return answer, nil
}

func answerOf(code int, header http.Header, body string) *http.Response {
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Header: header,
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
}

func clientOf(a answering) *Client {
	return New(Options{Host: "registry.example", Client: &http.Client{Transport: a}})
}

func app(t *testing.T) reference.Named {
	return expect.Value(reference.ParseDockerRef("registry.example/app:1"))(t)
}

func FuzzChallenge(f *testing.F) {
	f.Add(`Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull"`, "1")
	f.Add(`Negotiate YII=, Basic realm="\"", charset="UTF-8"`, "2")
	f.Add(`Bearer realm="https://registry.example/token",error="\u001b[31m"`, "")
	f.Add(`Bearer realm`, "0")
	f.Fuzz(func(t *testing.T, field, token string) {
		requests := 0
		c := clientOf(func(r *http.Request) *http.Response {
			if requests++; requests > 20 {
				t.Fatal("asks for ever")
			}
			if !strings.HasPrefix(r.URL.Path, "/v2/") {
				return answerOf(http.StatusOK, http.Header{}, `{"token":"`+token+`"}`)
			}
			if r.Header.Get("Authorization") != "" && token == "1" {
				return answerOf(http.StatusNotFound, http.Header{}, "")
			}
			return answerOf(http.StatusUnauthorized, http.Header{"Www-Authenticate": {field, field}}, "")
		})
		expect.ErrorWith(t, expect.ErrorOf(c.Resolve(t.Context(), app(t))), "", "resolving")
	})
}

func TestAPasswordGoesToNoTokenServiceWithoutTLS(t *testing.T) {
	asked := 0
	service := answering(func(*http.Request) *http.Response {
		asked++
		return answerOf(http.StatusOK, http.Header{}, `{"token":"t"}`)
	})
	for plain, want := range map[bool]int{false: 0, true: 1} {
		asked = 0
		r := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://tokens.example/token", nil))(t)
		answer, err := tokens{service, plain}.RoundTrip(r)
		if err == nil {
			answer.Body.Close()
		}
		expect.True(t, asked == want && (err == nil) == plain, "of a registry with plain HTTP %t: asked %d times, %v", plain, asked, err)
	}
}

// The time to read a challenge grows with the square of its length.
func TestChallengesAreBounded(t *testing.T) {
	long := strings.Repeat(`a="\a",`, 1000)
	many := slices.Repeat([]string{`Basic realm="x"`}, 100)
	header := http.Header{"Www-Authenticate": append([]string{`Basic realm="short"`, "Bearer " + long}, many...)}
	boundChallenges(header)
	if kept := header.Values("WWW-Authenticate"); len(kept) != maxChallenges || kept[0] != `Basic realm="short"` || kept[1] != many[0] {
		t.Errorf("kept %d: %.80q", len(kept), kept)
	}
}

func FuzzToken(f *testing.F) {
	f.Add([]byte(`{"token":"secret","expires_in":300,"issued_at":"2026-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"access_token":"secret","expires_in":1e308,"refresh_token":"secret","issued_at":"secret"}`))
	f.Add([]byte(`{"token":"secret","expires_in":"secret"}`))
	f.Add([]byte(`{"token":"secret","expires_in":0.5}`))
	f.Add([]byte(`{"expires_in":-1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := tokenIn(data)
		if err != nil {
			expect.True(t, !strings.Contains(err.Error(), "secret"), "tells a secret: %v", err)
			return
		}
		var token auth.FetchTokenResponse
		var oauth auth.OAuthTokenResponse
		if err := errors.Join(json.Unmarshal(got, &token), json.Unmarshal(got, &oauth)); err != nil {
			t.Fatalf("containerd cannot read %s: %v", got, err)
		}
		if token.Token == "" || oauth.AccessToken != token.Token || token.ExpiresInSeconds < 0 || token.ExpiresInSeconds > int(longestTime.Seconds()) {
			t.Errorf("took %s", got)
		}
	})
}

func FuzzReferrers(f *testing.F) {
	f.Add(`{"manifests":[{"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":1,"urls":["https://x"],"data":"eA=="}]}`)
	f.Add(`{"manifests":[{}]}`)
	f.Add(`{"manifests":[{"digest":"sha256:e3"}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, body string) {
		c := clientOf(func(*http.Request) *http.Response { return answerOf(http.StatusOK, http.Header{}, body) })
		refer, err := c.Referrers(t.Context(), app(t), digest.FromString("app"))
		if err != nil {
			return
		}
		for _, m := range refer {
			expect.True(t, m.Digest.Validate() == nil && m.URLs == nil && m.Data == nil, "took %+v", m)
		}
	})
}
