package wfm

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Why a request was given up.
var (
	errStalled = errors.New("the server has been silent for too long")
	errSlow    = errors.New("the answer takes too long")
)

// watch derives a context that ends with errStalled without a poke for the timeout, until stop.
func watch(ctx context.Context, timeout time.Duration) (watched context.Context, poke, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(timeout, func() { cancel(errStalled) })
	return watched, func() { timer.Reset(timeout) }, func() { timer.Stop(); cancel(nil) }
}

type noted struct {
	io.Reader
	note func(n int, err error) error // gives the error of a read that brought n bytes
}

func (r noted) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	return n, r.note(n, err)
}

// limited fails with ErrTooLarge beyond the limit, unlike io.LimitReader, which just ends.
func limited(r io.Reader, limit int64) io.Reader {
	return noted{r, func(n int, err error) error {
		if limit -= int64(n); limit < 0 {
			return ErrTooLarge
		}
		return err
	}}
}

// contentEncoding is the encoding to undo: "" or "gzip".
func contentEncoding(h http.Header) (string, error) {
	switch encoding := strings.ToLower(strings.Join(h.Values("Content-Encoding"), ",")); encoding {
	case "", "identity":
		return "", nil
	case "gzip", "x-gzip":
		return "gzip", nil
	default:
		return "", fmt.Errorf("%w: Content-Encoding %.40q", errEncoding, encoding)
	}
}

// isPage reports whether content begins as an HTML page, which portals and proxies send in place
// of a WFM. The media type alone does not tell: some frameworks call every answer HTML.
func isPage(h http.Header, begin []byte) bool {
	return mediaTypeOf(h) == "text/html" && strings.HasPrefix(http.DetectContentType(begin), "text/html")
}

func mediaTypeOf(h http.Header) string {
	mediaType, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(mediaType))
}

// skim reads the beginning of a body whose header decides, as far as possible.
func skim(h http.Header, body io.Reader, limit int64) []byte {
	encoding, err := contentEncoding(h)
	if err == nil && encoding == "gzip" {
		body, err = expand(body, limit)
	}
	if err != nil {
		return nil
	}
	content, _ := io.ReadAll(io.LimitReader(body, limit))
	return content
}

// readBody reads at most limit bytes, both as received and after undoing gzip.
func readBody(r io.Reader, encoding string, limit int64) ([]byte, error) {
	r = limited(r, limit)
	if encoding == "gzip" {
		var err error
		if r, err = expand(r, limit); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		return nil, decoding(err)
	}
	return b.Bytes(), nil
}

func expand(r io.Reader, limit int64) (io.Reader, error) {
	expanded, err := gzip.NewReader(r)
	if err != nil {
		return nil, decoding(err)
	}
	return limited(expanded, limit), nil
}

// decoding tells errors of the content from those of the connection.
func decoding(err error) error {
	var corrupt flate.CorruptInputError
	switch {
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.As(err, &corrupt):
		return fmt.Errorf("%w: %w", errEncoding, err)
	case errors.Is(err, io.EOF): // of an empty body that should begin with a gzip header
		return io.ErrUnexpectedEOF
	}
	return err
}
