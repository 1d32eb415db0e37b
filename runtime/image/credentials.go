package image

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/margolite/margolite/runtime/registry"
)

const maxCredentials = 1 << 20 // bytes of a credentials file

var errNotConfig = errors.New("not in the form of Docker's config.json")

// errHelper says that the secrets are somewhere else.
var errHelper = &Error{
	Kind: Refused,
	Err:  errors.New("they are kept by a program (credsStore or credHelpers), and none is run here: put them into auths"),
}

// dockerConfig is the part of Docker's config.json that holds credentials. Helpers are programs, and are not run.
type dockerConfig struct {
	Auths map[string]struct {
		Auth          string `json:"auth"` // base64 of user:password
		Username      string `json:"username"`
		Password      string `json:"password"`
		IdentityToken string `json:"identitytoken"`
	} `json:"auths"`
	Store   string            `json:"credsStore"`
	Helpers map[string]string `json:"credHelpers"` // by host
}

// readCredentials returns what the file has for a host; nothing when it has nothing. An empty user with a secret is a
// token.
func readCredentials(file, host string) (user, secret string, err error) {
	data, err := readSmall(file, maxCredentials)
	if err != nil {
		return "", "", fmt.Errorf("cannot read credentials: %w", err)
	}
	user, secret, err = parseCredentials(data, host)
	if err != nil {
		return "", "", fmt.Errorf("cannot read credentials for %s in %s: %w", host, file, err)
	}
	return user, secret, nil
}

func parseCredentials(data []byte, host string) (user, secret string, err error) {
	var config dockerConfig
	if err := json.Unmarshal(data, &config); err != nil {
		return "", "", errNotConfig // json's error would quote what may be a secret
	}
	for key, auth := range config.Auths {
		if hostOf(key) != host {
			continue
		}
		switch {
		case auth.IdentityToken != "":
			return "", auth.IdentityToken, nil
		case auth.Auth != "":
			plain, err := base64.StdEncoding.DecodeString(auth.Auth)
			if err != nil {
				return "", "", errNotConfig
			}
			user, secret, ok := strings.Cut(string(plain), ":")
			if !ok {
				return "", "", errNotConfig
			}
			return user, strings.TrimRight(secret, "\x00"), nil
		case auth.Username != "" || auth.Password != "":
			return auth.Username, auth.Password, nil
		}
	}
	for key := range config.Helpers {
		if hostOf(key) == host {
			return "", "", errHelper
		}
	}
	if config.Store != "" {
		return "", "", errHelper
	}
	return "", "", nil
}

// hostOf is the host on the wire for a key of config.json: a host, or a URL as in "https://index.docker.io/v1/".
func hostOf(key string) string {
	_, rest, ok := strings.Cut(key, "://")
	if !ok {
		rest = key
	}
	host, _, _ := strings.Cut(rest, "/")
	if host == "index.docker.io" {
		host = "docker.io"
	}
	return registry.HostOf(host)
}
