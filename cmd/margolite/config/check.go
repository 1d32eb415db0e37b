package config

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A check says what is wrong with a text.
type check func(string) error

func optional(c check) check {
	return func(s string) error {
		if s == "" {
			return nil
		}
		return c(s)
	}
}

// line is any text that fits on one line.
func line(s string) error {
	switch {
	case len(s) > 256:
		return errors.New("expected at most 256 bytes")
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return errors.New("expected text without control characters")
	}
	return nil
}

// deviceID has the form that a capabilities document requires, and becomes a
// part of URLs: no name may be one that changes the path there.
func deviceID(s string) error {
	problem := errors.New("expected names of letters, digits and . _ ~ - with / between them")
	for name := range strings.SplitSeq(s, "/") {
		if name == "" || name == "." || name == ".." || strings.ContainsFunc(name, func(r rune) bool { return !isNameRune(r, "._~-") }) {
			return problem
		}
	}
	return line(s)
}

// namespace has the form of containerd's identifiers.
func namespace(s string) error {
	problem := errors.New("expected at most 76 letters and digits, with single . _ - between them")
	if len(s) > 76 {
		return problem
	}
	separated := true
	for _, r := range s {
		switch {
		case isNameRune(r, ""):
			separated = false
		case isNameRune(r, "._-") && !separated:
			separated = true
		default:
			return problem
		}
	}
	if separated {
		return problem
	}
	return nil
}

func isNameRune(r rune, others string) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(others, r)
}

// path is absolute: the daemon has no directory of its own to start from.
func path(s string) error {
	if !filepath.IsAbs(s) || len(s) > 4096 || strings.ContainsFunc(s, unicode.IsControl) {
		return fmt.Errorf("expected an absolute path, got %s", quote(s))
	}
	return nil
}

func containerd(s string) error {
	if s == Embedded || path(s) == nil {
		return nil
	}
	return fmt.Errorf("expected %s or the absolute path of a socket, got %s", Embedded, quote(s))
}

func trustBundle(s string) error {
	if strings.HasPrefix(s, "https://") {
		return fmt.Errorf("a URL is %s; expected the absolute path of a file", notYet)
	}
	return path(s)
}

// baseURL repeats nothing of a wrong URL, it may contain a password.
func baseURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return errors.New("expected a URL such as https://wfm.example.com")
	case u.Scheme != "https":
		return errors.New("expected a URL that begins with https://")
	case host(u.Host) != nil:
		return errors.New("expected a host after https://, with a port where it is not 443")
	case u.User != nil:
		return errors.New("expected a URL without user and password; the device shows its certificate")
	case u.RawQuery != "" || u.ForceQuery:
		return errors.New("expected a URL without a query")
	case u.Fragment != "" || strings.Contains(s, "#"):
		return errors.New("expected a URL without a fragment")
	}
	return nil
}

// host is a name or an address, with a port or without.
func host(s string) error {
	problem := fmt.Errorf("expected a host, or host:port, got %s", quote(s))
	u, err := url.Parse("https://" + s)
	if err != nil || u.Host != s || u.Hostname() == "" || len(s) > 262 {
		return problem
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !isNameRune(r, ".-_:[]%") }) {
		return problem
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return problem
		}
	} else if strings.HasSuffix(s, ":") {
		return problem
	}
	return nil
}
