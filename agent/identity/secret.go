package identity

import (
	"encoding/base64"
	"errors"
	"strings"
	"unicode"
)

const maxSecretSize = 8 << 10

// ReadSecret reads a file of one line that only its owner may read: a token or password. The
// error is an *Error and repeats nothing of the content.
func ReadSecret(path string) (string, error) {
	data, err := readPrivate(path, maxSecretSize)
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(data))
	switch {
	case text == "":
		err = errors.New("holds no credentials")
	case strings.ContainsFunc(text, unicode.IsControl):
		err = errors.New("has more than one line, or control characters")
	default:
		return text, nil
	}
	return "", fault(NoSecret, path, "%w", err)
}

// BasicFile gives the value of an Authorization header from a file with "user:password", for
// wfm.Options. The file is read for each request, so that replacements are followed.
func BasicFile(path string) func() (string, error) {
	return func() (string, error) {
		secret, err := ReadSecret(path)
		if err == nil && !strings.Contains(secret, ":") {
			err = fault(NoSecret, path, "does not hold user:password")
		}
		if err != nil {
			return "", err
		}
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(secret)), nil
	}
}

// BearerFile is BasicFile for a file that holds a token (RFC 6750).
func BearerFile(path string) func() (string, error) {
	return func() (string, error) {
		secret, err := ReadSecret(path)
		if err == nil && strings.ContainsFunc(secret, func(c rune) bool { return c <= ' ' || c > '~' }) {
			err = fault(NoSecret, path, "does not hold a token: it has spaces, or characters that are not ASCII")
		}
		if err != nil {
			return "", err
		}
		return "Bearer " + secret, nil
	}
}
