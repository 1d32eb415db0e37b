package registry

import (
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"strings"
)

// Auth is how a registry asks who is there.
type Auth string

// The ways registries in the field have.
const (
	None   Auth = ""       // not at all
	Basic  Auth = "basic"  // user and password with every request
	Bearer Auth = "bearer" // a token, fetched for user and password from /token
)

const tokenPath = "/token"

// authenticated lets only known callers through.
func (r *Registry) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		challenge := ""
		switch r.options.Auth {
		case Basic:
			if !r.knows(request) {
				challenge = `Basic realm="wfmsim"`
			}
		case Bearer:
			// Whoever pushes for a test may do without the detour over a token.
			token, _ := strings.CutPrefix(request.Header.Get("Authorization"), "Bearer ")
			if !same(token, r.bearer) && !r.knows(request) {
				challenge = `Bearer realm="` + r.URL() + tokenPath + `",service="wfmsim"`
				if scope := scopeOf(request); scope != "" {
					challenge += `,scope="` + scope + `"`
				}
			}
		}
		if challenge != "" {
			w.Header().Set("WWW-Authenticate", challenge)
			refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "user and password are needed")
			return
		}
		next.ServeHTTP(w, request)
	})
}

// token hands out the one token there is. It does not expire: what a client
// does about an expired one is tested by an injected 401.
func (r *Registry) token(w http.ResponseWriter, request *http.Request) {
	if !r.knows(request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="wfmsim"`)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "wrong user or password")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"token": r.bearer, "expires_in": 3600})
}

func (r *Registry) knows(request *http.Request) bool {
	user, password, ok := request.BasicAuth()
	return ok && same(user, r.options.User) && same(password, r.options.Password)
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// scopeOf is what a token would have to allow for the request.
func scopeOf(request *http.Request) string {
	name := strings.TrimPrefix(request.URL.Path, "/v2/")
	for _, kind := range []string{"/manifests/", "/blobs/", "/tags/"} {
		if repository, _, ok := strings.Cut(name, kind); ok {
			return "repository:" + repository + ":pull"
		}
	}
	return ""
}
