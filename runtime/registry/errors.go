package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"
)

var (
	// ErrContent says that what came is not what it should be, for which the way here may be as much to blame as the
	// registry.
	ErrContent = errors.New("the registry sent something else")
	// ErrOld says that a registry has only a manifest of Docker's first form, which cannot be verified.
	ErrOld = errors.New("its manifest is too old to be verified, it has to be pushed anew")
	// ErrPage says that something else answered in place of a registry, as captive portals and proxies do.
	ErrPage = errors.New("a page for people answered in its place")
	// ErrRange says that a registry does not send the rest of a part, of which the beginning may be of no use, then.
	ErrRange = errors.New("the registry cannot go on with what it has begun")
	// ErrDenied says that there are no credentials for a host that wants some.
	ErrDenied = errors.New("there are no credentials for it")
)

// Bounds of an answer that is an error.
const (
	maxErrorBody   = 64 << 10 // bytes
	maxDetails     = 4        // that are kept
	maxDetailBytes = 256      // of the text of each
)

// StatusError is an answer with a status that is none of success. One of 404 is an errdefs.ErrNotFound as well, and one
// of 416 an ErrRange.
type StatusError struct {
	Method  string
	URL     string // without a query
	Code    int    // of HTTP
	Details []Detail
}

// Detail is what a registry says of an error (OCI distribution, "Error Codes").
type Detail struct {
	Code    string // such as MANIFEST_UNKNOWN
	Message string // for people, on one line; may be empty
}

func (e *StatusError) Error() string {
	var b strings.Builder
	b.WriteString(strings.TrimSpace(fmt.Sprintf("%s %s: %d %s", e.Method, e.URL, e.Code, http.StatusText(e.Code))))
	for n, d := range e.Details {
		separator := "; "
		if n == 0 {
			separator = ": "
		}
		b.WriteString(separator)
		b.WriteString(d.Code)
		if d.Message != "" {
			b.WriteString(" (" + d.Message + ")")
		}
	}
	return b.String()
}

func (e *StatusError) Unwrap() error {
	switch e.Code {
	case http.StatusNotFound:
		return errdefs.ErrNotFound
	case http.StatusRequestedRangeNotSatisfiable:
		return ErrRange
	}
	return nil
}

// statusError reads an answer that is an error to its end.
func statusError(answer *http.Response) *StatusError {
	e := &StatusError{Method: answer.Request.Method, URL: shown(answer.Request.URL), Code: answer.StatusCode}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxErrorBody))
	answer.Body.Close()
	if err == nil {
		e.Details = detailsIn(body)
	}
	return e
}

// shown is a URL as it may be shown: what is behind it may be a secret.
func shown(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// detailsIn reads the body of an error; what is in another form says nothing.
func detailsIn(body []byte) []Detail {
	var said struct {
		Errors []struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"errors"`
	}
	if json.Unmarshal(body, &said) != nil {
		return nil
	}
	var details []Detail
	for _, e := range said.Errors[:min(len(said.Errors), maxDetails)] {
		if d := (Detail{Code: line(e.Code), Message: line(e.Message)}); d.Code != "" || d.Message != "" {
			details = append(details, d)
		}
	}
	return details
}

// line is a text from outside as it fits into a log.
func line(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxDetailBytes {
		text = strings.ToValidUTF8(text[:maxDetailBytes], "") + "..."
	}
	return strings.Join(strings.Fields(text), " ")
}
