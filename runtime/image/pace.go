package image

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/margolite/margolite/runtime/registry"
)

const (
	// firstPause is before a download that broke off is continued, and doubled each time until enough has come.
	firstPause   = 100 * time.Millisecond
	vainPause    = time.Second // the first after less than enough
	longestPause = time.Minute
	maxPaced     = 1024 // downloads that are remembered
)

// paced delays requests that continue a download which keeps breaking off: by what has come since it was last delayed
// and not by when something came. It goes on where a former session was.
type paced struct {
	mu     sync.Mutex
	broken map[string]*breaks // by host and path
}

// breaks is what is known of a download that broke off.
type breaks struct {
	came  int64 // bytes since enough had come
	pause time.Duration
	until time.Time // nobody asks for the rest
}

// over paces the requests of a transport.
func (p *paced) over(next http.RoundTripper) http.RoundTripper { return pacedTransport{p, next} }

type pacedTransport struct {
	*paced
	next http.RoundTripper
}

// CloseIdleConnections is for the http.Client.
func (t pacedTransport) CloseIdleConnections() {
	if closer, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

func (t pacedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		return t.next.RoundTrip(r)
	}
	key := r.URL.Host + r.URL.Path // a signature in the query may be another each time
	if r.Header.Get("Range") != "" {
		if err := t.wait(r.Context(), key); err != nil {
			return nil, err
		}
	}
	answer, err := t.next.RoundTrip(r)
	if err == nil && (answer.StatusCode == http.StatusOK || answer.StatusCode == http.StatusPartialContent) {
		answer.Body = &pacedBody{ReadCloser: answer.Body, answer: answer, of: t.paced, key: key}
	}
	return answer, err
}

// wait waits until the rest of a download may be asked for.
func (p *paced) wait(ctx context.Context, key string) error {
	p.mu.Lock()
	b := p.broken[key]
	var until time.Time
	if b != nil {
		until = b.until
	}
	p.mu.Unlock()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ended takes note of what came with an answer.
func (p *paced) ended(key string, came int64, whole bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if whole {
		delete(p.broken, key)
		return
	}
	b := p.broken[key]
	if b == nil {
		if p.broken == nil || len(p.broken) >= maxPaced {
			p.broken = make(map[string]*breaks)
		}
		b = &breaks{}
		p.broken[key] = b
	}
	b.came += came
	switch {
	case b.came >= registry.Enough:
		b.came, b.pause = 0, 0
		b.until = time.Now().Add(firstPause)
		return
	case b.pause == 0:
		b.pause = vainPause
	default:
		b.pause = min(2*b.pause, longestPause)
	}
	b.until = time.Now().Add(b.pause)
}

// pacedBody sees how an answer ends.
type pacedBody struct {
	io.ReadCloser
	answer *http.Response
	of     *paced
	key    string
	came   int64
	once   sync.Once
}

func (b *pacedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.came += int64(n)
	if err != nil {
		b.end(err == io.EOF)
	}
	return n, err
}

func (b *pacedBody) Close() error {
	b.end(false)
	return b.ReadCloser.Close()
}

func (b *pacedBody) end(eof bool) {
	b.once.Do(func() {
		whole := b.came == b.answer.ContentLength || eof && b.answer.ContentLength < 0 && b.came >= registry.Enough
		if b.answer.StatusCode == http.StatusPartialContent {
			whole = whole && isLast(b.answer.Header.Get("Content-Range"))
		}
		if !whole && b.answer.Request.Context().Err() != nil { // we have broken it off
			return
		}
		b.of.ended(b.key, b.came, whole)
	})
}

// isLast says whether a Content-Range (RFC 9110, section 14.4) reaches to the end.
func isLast(field string) bool {
	span, total, _ := strings.Cut(strings.TrimPrefix(field, "bytes "), "/")
	_, last, _ := strings.Cut(span, "-")
	at, err := strconv.ParseInt(last, 10, 64)
	return err == nil && strconv.FormatInt(at+1, 10) == total
}
