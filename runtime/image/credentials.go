package image

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/registry"
	"github.com/margolite/margolite/runtime/tree"
)

const maxCredentials = 1 << 20 // bytes of a credentials file

var errNotConfig = errors.New("not a Docker config.json")

var errHelper = &fault.Error{
	Code: fault.Refused,
	Err:  errors.New("a credential helper has them (credsStore or credHelpers), which is not supported: put them into auths"),
}

// dockerConfig is the credentials in Docker's config.json. Helpers are programs and not run.
type dockerConfig struct {
	Auths   map[string]credentials `json:"auths"` // by host, or host and the beginning of a repository
	Store   string                 `json:"credsStore"`
	Helpers map[string]string      `json:"credHelpers"` // by host
}

type credentials struct {
	Auth          string `json:"auth"` // base64 of user:password
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
}

// credentials returns what is configured, if anything. An empty user with a secret means a token.
func (r Registry) credentials(host, repository string) (user, secret string, err error) {
	if r.Credentials == "" {
		return "", "", nil
	}
	data, err := tree.ReadFile(r.Credentials, maxCredentials)
	if err != nil {
		return "", "", fmt.Errorf("cannot read credentials: %w", err)
	}
	user, secret, err = parseCredentials(data, host, repository)
	if err != nil {
		return "", "", fmt.Errorf("cannot read credentials for %s in %s: %w", host, r.Credentials, err)
	}
	return user, secret, nil
}

// parseCredentials takes the most specific key that covers the repository, of equal ones the first.
func parseCredentials(data []byte, host, repository string) (user, secret string, err error) {
	var config dockerConfig
	if err := json.Unmarshal(data, &config); err != nil {
		return "", "", errNotConfig // json's error would quote what may be a secret
	}
	var best credentials
	longest := -1
	for _, key := range slices.Sorted(maps.Keys(config.Auths)) {
		keyHost, path := splitKey(key)
		covers := path == "" || repository == path || strings.HasPrefix(repository, path+"/")
		if c := config.Auths[key]; c != (credentials{}) && keyHost == host && covers && len(path) > longest {
			best, longest = c, len(path)
		}
	}
	switch {
	case best.IdentityToken != "":
		return "", best.IdentityToken, nil
	case best.Auth != "":
		plain, err := base64.StdEncoding.DecodeString(best.Auth)
		user, secret, ok := strings.Cut(string(plain), ":")
		if err != nil || !ok {
			return "", "", errNotConfig
		}
		return user, strings.TrimRight(secret, "\x00"), nil
	case longest >= 0:
		return best.Username, best.Password, nil
	}
	for key := range config.Helpers {
		if keyHost, _ := splitKey(key); keyHost == host {
			return "", "", errHelper
		}
	}
	if config.Store != "" {
		return "", "", errHelper
	}
	return "", "", nil
}

// splitKey splits a key of config.json, a host with an optional repository prefix or a URL such as
// "https://index.docker.io/v1/", into the host on the wire and the repository. Keys of tokens that
// Docker's login adds for such a URL have a path that no repository has.
func splitKey(key string) (host, repository string) {
	if _, rest, ok := strings.Cut(key, "://"); ok {
		key = rest
	}
	host, repository, _ = strings.Cut(key, "/")
	switch repository = strings.Trim(repository, "/"); repository {
	case "v1", "v2": // of the API
		repository = ""
	case "v1/access-token", "v1/refresh-token":
		repository = ":"
	}
	if host == "index.docker.io" {
		host = "docker.io"
	}
	return registry.HostOf(host), repository
}
