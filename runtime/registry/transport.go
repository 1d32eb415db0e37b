package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	remoteserrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/opencontainers/go-digest"
)

const (
	firstPause    = 50 * time.Millisecond // before the second request, then twice as long each time
	longestPause  = 10 * time.Second      // that a registry may ask for; longer ones are the caller's
	maxChallenges = 16                    // of an answer
	maxChallenge  = 4 << 10               // bytes
	// fruitless is the number of interruptions in vain that ends a call.
	fruitless = 4
	// Enough is how many bytes between two interruptions count as progress.
	Enough = 16 << 10
)

// transfer is the state of one call of a Client: one request or several in sequence.
type transfer struct {
	part bool          // the answer is a part of an image, else a document
	size int64         // of the part
	came *atomic.Int64 // counts its bytes; may be nil
	pace *Pace
	key  string // of pace

	refused   int   // requests that were answered with trouble
	failed    int   // requests in a row that brought no answer
	referrers error // of the referrers API
}

type transferKey struct{}

// transport checks and bounds the answers of registries and of hosts they redirect to.
type transport struct{ next http.RoundTripper }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	x := r.Context().Value(transferKey{}).(*transfer)
	if !x.part && r.Method == http.MethodHead && r.Response == nil && strings.Contains(r.URL.Path, "/blobs/") {
		// After a failed request for a manifest, containerd tries the blobs and loses the error.
		return nil, errNoBlob
	}
	if x.part && r.Header.Get("Range") != "" {
		if err := x.pace.wait(r.Context(), x.key); err != nil {
			return nil, err
		}
	}
	r = r.Clone(r.Context())
	// The digest and offsets are those of the part itself, not of an encoding.
	r.Header.Set("Accept-Encoding", "identity")
	answer, err := t.ask(x, r)
	if errors.Is(err, errRange) && r.Header.Get("Range") != "" {
		// containerd discards the part's beginning that is already present.
		r.Header.Del("Range")
		answer, err = t.ask(x, r)
	}
	if isTransient(err) && r.Context().Err() == nil {
		// containerd retries only after an early end, and then up to four times.
		if x.failed++; x.failed == 1 {
			err = fmt.Errorf("%v: %w", err, io.ErrUnexpectedEOF)
		} else {
			err = fmt.Errorf("%v", err)
		}
	}
	if strings.Contains(r.URL.Path, "/referrers/") {
		x.referrers = err
		if err == nil {
			x.referrers = troubleOf(answer)
		}
	}
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func (t transport) ask(x *transfer, r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err == nil {
		if err = x.check(r, answer); err != nil {
			answer.Body.Close()
		}
	}
	return answer, err
}

var errNoBlob = errors.New("a manifest is not a blob")

// isTransient tells whether the connection broke or fell silent.
func isTransient(err error) bool {
	var silent net.Error
	return errors.As(err, &silent) && silent.Timeout() || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// check refuses an answer, or makes it acceptable to containerd's client.
func (x *transfer) check(r *http.Request, answer *http.Response) error {
	switch code := answer.StatusCode; {
	case code >= 200 && code < 300:
		x.failed = 0
		if typeOf(answer) == "text/html" {
			return ErrPage
		}
		// containerd would decompress it, and count offsets in the result.
		answer.Header.Del("Content-Encoding")
		if x.part {
			return x.checkPart(r, answer)
		}
		switch form := typeOf(answer); {
		case strings.HasPrefix(form, schema1):
			return fmt.Errorf("%w: it is of type %.100s", ErrOld, form)
		case form == "text/plain": // which containerd takes for Docker's first
			answer.Header.Del("Content-Type")
		default:
			answer.Header.Set("Content-Type", form)
		}
		return checkDocument(answer)
	case code >= 300 && code < 400 && answer.Header.Get("Location") == "": // its body would be taken
		return fmt.Errorf("%w: status %d", ErrContent, code)
	case code == http.StatusRequestedRangeNotSatisfiable:
		return errRange
	case code == http.StatusUnauthorized:
		boundChallenges(answer.Header)
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code == http.StatusInternalServerError,
		code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		// containerd would retry these at once, whatever the registry asks for.
		pause := pauseOf(answer, firstPause<<min(x.refused, 4))
		x.refused++
		if pause > longestPause {
			return remoteserrors.NewUnexpectedStatusErr(answer)
		}
		return wait(r.Context(), pause)
	}
	return nil
}

func checkDocument(answer *http.Response) error {
	if answer.ContentLength > MaxManifest {
		return errBig
	}
	if said := answer.Header.Get("Docker-Content-Digest"); said != "" {
		if err := digest.Digest(said).Validate(); err != nil {
			return fmt.Errorf("%w: %w", ErrContent, err)
		}
	}
	answer.Body = http.MaxBytesReader(nil, answer.Body, MaxManifest)
	return nil
}

var errBig = fmt.Errorf("%w: it has more than %d bytes", ErrContent, MaxManifest)

// checkPart checks that an answer holds the part from the requested offset.
func (x *transfer) checkPart(r *http.Request, answer *http.Response) error {
	body := &part{ReadCloser: answer.Body, ctx: r.Context(), of: x}
	_, whole := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &body.from) // an error where no range was asked for
	span := answer.Header.Get("Content-Range")
	switch {
	case answer.StatusCode != http.StatusPartialContent:
		if n := answer.ContentLength; n >= 0 && n != x.size {
			return fmt.Errorf("%w: it has %d bytes instead of %d", ErrContent, n, x.size)
		}
		answer.Header.Del("Content-Range") // by which containerd would go
	case whole != nil || !startsAt(span, body.from, x.size):
		return fmt.Errorf("requested bytes from %d on, it sent %.80q: %w", body.from, span, errRange)
	default:
		body.at = body.from
	}
	answer.Body = body
	return nil
}

// startsAt tells whether a Content-Range (RFC 9110, section 14.4) starts at offset in a part of size.
func startsAt(field string, offset, size int64) bool {
	rest, ok := strings.CutPrefix(field, "bytes "+strconv.FormatInt(offset, 10)+"-")
	_, total, found := strings.Cut(rest, "/")
	return ok && found && (total == "*" || total == strconv.FormatInt(size, 10))
}

// part is the body of a part. An early io.ErrUnexpectedEOF makes containerd request the rest.
type part struct {
	io.ReadCloser
	ctx  context.Context // of the request
	of   *transfer
	from int64 // offset in the part that was asked for
	at   int64 // how far the part was read; containerd discards what lies before from
}

func (p *part) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	p.at += int64(n)
	if p.of.came != nil {
		p.of.came.Add(int64(n))
	}
	whole := p.at >= p.of.size
	if whole {
		p.of.pace.end(p.of.key)
	}
	if isTransient(err) && !(whole && err == io.EOF) && p.ctx.Err() == nil {
		err = io.ErrUnexpectedEOF
		if n := p.of.pace.brokeOff(p.of.key, p.from, p.at); n > 0 && n%fruitless == 0 {
			err = fmt.Errorf("the download was interrupted %d times without progress: %w", n, err)
		}
	}
	return n, err
}

// troubleOf is an answer of the referrers API that is neither a list nor "no such API".
func troubleOf(answer *http.Response) error {
	code := answer.StatusCode
	if code < 400 || code == http.StatusNotFound || code == http.StatusBadRequest || code == http.StatusMethodNotAllowed {
		return nil
	}
	return remoteserrors.NewUnexpectedStatusErr(answer)
}

func typeOf(answer *http.Response) string { return plain(answer.Header.Get("Content-Type")) }

// plain is a media type without parameters, in lower case.
func plain(mediaType string) string {
	mediaType, _, _ = strings.Cut(mediaType, ";")
	return strings.ToLower(strings.TrimSpace(mediaType))
}

// boundChallenges drops what no registry needs: parsing takes quadratic time. containerd reads
// only the first challenge of a field, so each known one gets its own field.
func boundChallenges(header http.Header) {
	var kept []string
	for _, field := range header["Www-Authenticate"] {
		if len(field) <= maxChallenge {
			kept = append(kept, strings.Split(knownScheme().ReplaceAllString(field, "\n$1"), "\n")...)
		}
	}
	header["Www-Authenticate"] = kept[:min(len(kept), maxChallenges)]
}

// knownScheme begins another challenge (RFC 9110, section 11.6.1).
var knownScheme = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i),\s*((?:basic|bearer)\s)`) })

// pauseOf is the pause a registry asks for, or otherwise.
func pauseOf(answer *http.Response, otherwise time.Duration) time.Duration {
	said := answer.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(said, 10, 31); err == nil {
		return max(otherwise, time.Duration(seconds)*time.Second)
	}
	if at, err := http.ParseTime(said); err == nil {
		return max(otherwise, time.Until(at))
	}
	return otherwise
}

func wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
