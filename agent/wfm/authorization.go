package wfm

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxSecret bounds a file with a password or a token.
const maxSecret = 8 << 10

// BasicFile gives the value of an Authorization header out of a file that holds
// "user:password", as Options.Authorization wants it. The file is read for each
// request, so that a replaced one is followed. Errors tell nothing of what is
// in it.
func BasicFile(path string) func() (string, error) {
	return func() (string, error) {
		secret, err := readSecret(path)
		if err != nil {
			return "", err
		}
		if !strings.Contains(secret, ":") {
			return "", fmt.Errorf("cannot use %s: it does not hold user:password", path)
		}
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(secret)), nil
	}
}

// BearerFile is BasicFile for a file that holds a token (RFC 6750).
func BearerFile(path string) func() (string, error) {
	return func() (string, error) {
		secret, err := readSecret(path)
		if err != nil {
			return "", err
		}
		if strings.ContainsFunc(secret, func(c rune) bool { return c <= ' ' || c > '~' }) {
			return "", fmt.Errorf("cannot use %s: a token has no spaces and only ASCII characters", path)
		}
		return "Bearer " + secret, nil
	}
}

func readSecret(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot read credentials: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("cannot read credentials: %w", err)
	case len(data) > maxSecret:
		return "", fmt.Errorf("cannot use %s: it is larger than %d bytes", path, maxSecret)
	}
	secret := strings.TrimRight(string(data), "\r\n")
	if secret == "" || strings.ContainsAny(secret, "\r\n\x00") {
		return "", errors.New("cannot use " + path + ": it does not hold one line")
	}
	return secret, nil
}
