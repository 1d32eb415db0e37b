package wfm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/expect"
)

const manifestRoute = "GET /api/v1/deployments"

func TestManifestComesAsItWasSent(t *testing.T) {
	s, c := pair(t)
	f := newFleet(2, 10)
	f.publish(s, "")
	_, known := c.ServerLag(time.Now())
	expect.Equal(t, known, false, "a lag is known before the first answer")

	m := expect.Value(c.Manifest(t.Context(), ""))(t)
	if !bytes.Equal(m.Raw, f.raw()) || m.Digest != digest.FromBytes(f.raw()) || m.ETag != `"`+m.Digest.String()+`"` {
		t.Errorf("raw bytes, digest %s or ETag %s are not those of the manifest", m.Digest, m.ETag)
	}
	expect.Equal(t, m.Version, 7, "version")
	expect.Equal(t, len(m.Deployments), 2, "deployments")
	if age := time.Since(c.ServerTime()); age < -time.Minute || age > time.Minute {
		t.Errorf("ServerTime = %s", c.ServerTime())
	}
	if lag, known := c.ServerLag(time.Now().Add(-time.Hour)); !known || lag < 59*time.Minute || lag > 61*time.Minute {
		t.Errorf("a clock that is an hour late lags by %s", lag)
	}

	expect.Error(t, expect.ErrorOf(c.Manifest(t.Context(), m.ETag)), wfm.ErrNotModified, "second poll")
}

func TestDS03DS04PollAsksForExactlyWhatItCanRead(t *testing.T) {
	s, c := pair(t)
	// As received, with whatever a server makes of an ETag.
	for _, etag := range []string{"", `"sha256:abc"`, `W/"x"`, `unquoted`, `"with \" and , inside"`, `"é"`} {
		var got http.Header
		s.handle(manifestRoute, func(w http.ResponseWriter, r *http.Request) {
			got = r.Header.Clone()
			w.WriteHeader(http.StatusNotModified)
		})
		_, err := c.Manifest(t.Context(), etag)
		if err == nil || errors.Is(err, wfm.ErrNotModified) != (etag != "") {
			t.Errorf("ETag %q: %v, want ErrNotModified, or another error for an unconditional request", etag, err)
		}
		expect.Equal(t, got.Values("Accept"), []string{margo.ManifestMediaType}, "Accept")
		expect.Equal(t, got.Values("Accept-Encoding"), []string{"gzip"}, "Accept-Encoding")
		expect.Equal(t, got.Get("If-None-Match"), etag, "If-None-Match")
	}
}

// An ETag that would match any manifest must not keep the device from ever hearing of
// another one. Which ones are of no use is shown by margo.FuzzETag.
func TestETagThatIsOfNoUseIsForgotten(t *testing.T) {
	s, c := pair(t)
	s.handle(manifestRoute, func(w http.ResponseWriter, r *http.Request) {
		expect.Equal(t, r.Header.Get("If-None-Match"), "", "If-None-Match")
		w.Header().Set("Content-Type", margo.ManifestMediaType)
		w.Header().Set("ETag", "*")
		w.Write(newFleet(1, 1).raw())
	})
	m := expect.Value(c.Manifest(t.Context(), "*"))(t) // as an earlier version may have kept it
	expect.Equal(t, m.ETag, "", "ETag that is kept")
}

func TestManifestAnswers(t *testing.T) {
	s := serve(t)
	foreign := s.trust.bystander(t)
	raw := newFleet(1, 10).raw()
	large := append(bytes.Repeat([]byte(" "), 1<<20), raw...)

	withType := func(contentType string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.Write(raw)
		}
	}
	encoded := func(encoding string, content []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", margo.ManifestMediaType)
			serveEncoded(encoding, content)(w, r)
		}
	}

	tests := map[string]struct {
		handler http.HandlerFunc
		is      error  // errors.Is
		status  int    // of *wfm.Error
		text    string // in the error
		retry   bool
		after   time.Duration
		ok      bool
	}{
		"its own type":                      {handler: withType(margo.ManifestMediaType), ok: true},
		"its own type with a parameter":     {handler: withType(margo.ManifestMediaType + "; charset=utf-8"), ok: true},
		"plain JSON":                        {handler: withType("application/json"), ok: true},
		"a signed manifest":                 {handler: withType("application/vnd.margo.manifest.v1.jws+json"), is: wfm.ErrContentType},
		"a page":                            {handler: withType("text/html"), is: wfm.ErrContentType},
		"its own type in capital letters":   {handler: withType("Application/VND.margo.manifest.V1+JSON"), ok: true},
		"its own type, badly written":       {handler: withType(margo.ManifestMediaType + "; charset"), ok: true},
		"a text":                            {handler: withType("text/plain; charset=utf-8"), ok: true},
		"bytes":                             {handler: withType("application/octet-stream"), ok: true},
		"an empty content type":             {handler: withType(""), ok: true},
		"a text that is none":               {handler: serveProblem(200, "Log in first", "Content-Type", "text/plain"), is: wfm.ErrContentType},
		"a signed manifest called a text":   {handler: serveProblem(200, `{"payload":"e30","signatures":[]}`, "Content-Type", "text/plain"), text: "state manifest"},
		"gzip":                              {handler: encoded("gzip", zip(raw)), ok: true},
		"gzip in upper case":                {handler: encoded("GZIP", zip(raw)), ok: true},
		"identity":                          {handler: encoded("identity", raw), ok: true},
		"an encoding not asked for":         {handler: encoded("br", raw), text: `"br"`},
		"two encodings":                     {handler: encoded("gzip, gzip", zip(zip(raw))), text: `"gzip, gzip"`},
		"gzip in the header only":           {handler: encoded("gzip", raw), text: "content encoding"},
		"gzip with nothing in it":           {handler: encoded("gzip", nil), text: "unexpected EOF", retry: true},
		"gzip cut off":                      {handler: encoded("gzip", zip(raw)[:40]), text: "unexpected EOF", retry: true},
		"gzip that was changed":             {handler: encoded("gzip", flip(zip(raw))), text: "content encoding"},
		"a bomb":                            {handler: encoded("gzip", zip(make([]byte, 100<<20))), is: wfm.ErrTooLarge},
		"more than a megabyte":              {handler: encoded("", large), is: wfm.ErrTooLarge},
		"less than announced":               {handler: serveTruncated(raw), text: "unexpected EOF", retry: true},
		"not JSON":                          {handler: encoded("", []byte("{")), text: "state manifest"},
		"redirect to elsewhere":             {handler: serveProblem(307, "", "Location", foreign+"/steal"), status: 307, text: foreign + "/steal"},
		"redirect to itself":                {handler: serveProblem(307, "", "Location", "/api/v1/deployments"), status: 307, text: "redirect"},
		"redirect to nonsense":              {handler: serveProblem(307, "", "Location", "::"), status: 307, text: "redirect"},
		"created":                           {handler: serveProblem(201, ""), is: wfm.ErrContentType},
		"not authorised":                    {handler: serveProblem(403, `{"type":"https://docs.margo.org/specification/problem-types#not-authorized","title":"Client Relationship Retired","status":403}`), status: 403, text: "Client Relationship Retired"},
		"bundle is invalid":                 {handler: serveProblem(406, `{"type":"https://docs.margo.org/specification/problem-types#server-cannot-generate-response","title":"x","status":406}`), status: 406},
		"unavailable for a while":           {handler: serveProblem(503, `{"title":"x","status":503}`, "Retry-After", "120"), status: 503, retry: true, after: 2 * time.Minute},
		"a page of a proxy in between":      {handler: serveProblem(502, "<html>Bad Gateway</html>", "Content-Type", "text/html"), status: 502, retry: true},
		"a compressed problem":              {handler: serveProblem(422, string(zip([]byte(`{"title":"Semantic Error","status":422,"errors":[{"field":"a.b","message":"must be c"}]}`))), "Content-Encoding", "gzip"), status: 422, text: "a.b: must be c"},
		"a problem without end":             {handler: serveProblem(400, `{"title":"`+strings.Repeat("x", 10<<20)), status: 400},
		"not modified though nothing known": {handler: serveProblem(304, ""), status: 304},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s.handle(manifestRoute, test.handler)
			m, err := s.client(t).Manifest(t.Context(), "")
			if test.ok {
				check(t, err)
				expect.Equal(t, m.Raw, raw, "raw bytes are not those of the manifest")
				return
			}
			if err == nil || test.is != nil && !errors.Is(err, test.is) {
				t.Fatalf("error %v is not %v", err, test.is)
			}
			var answer *wfm.Error
			if errors.As(err, &answer); test.status != 0 && (answer == nil || answer.Status != test.status) {
				t.Errorf("error %q is not an answer with status %d", err, test.status)
			}
			if !strings.Contains(err.Error(), test.text) || len(err.Error()) > 4096 {
				t.Errorf("error %q does not say %q in few words", err, test.text)
			}
			if retry, after := wfm.Retry(err); retry != test.retry || after != test.after {
				t.Errorf("Retry = %t, %s, want %t, %s", retry, after, test.retry, test.after)
			}
		})
	}
}

// flip changes a byte in the middle.
func flip(content []byte) []byte {
	content = bytes.Clone(content)
	content[len(content)/2] ^= 0xff
	return content
}

// drip answers one byte after the other, and says that it has begun.
func drip(begun chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, " ")
			_ = http.NewResponseController(w).Flush()
			select {
			case begun <- struct{}{}:
			default:
			}
			select {
			case <-r.Context().Done():
			case <-tick.C:
			}
		}
	}
}

func TestAnswersAreWaitedForOnlySoLong(t *testing.T) {
	s := serve(t)
	tests := map[string]struct {
		handler http.HandlerFunc
		limits  wfm.Limits
		timeout time.Duration
		text    string
	}{
		"a header and silence": {
			handler: func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", margo.ManifestMediaType)
				http.NewResponseController(w).Flush()
				<-r.Context().Done()
			},
			timeout: 300 * time.Millisecond, text: "silent",
		},
		"byte after byte": {
			handler: drip(nil), limits: wfm.Limits{Speed: 1 << 30},
			timeout: 2 * time.Second, text: "takes too long", // and between two bytes, much less
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s.handle(manifestRoute, test.handler)
			c := s.client(t, func(o *wfm.Options) { o.Timeout, o.Limits = test.timeout, test.limits })
			_, err := c.Manifest(t.Context(), "")
			expect.ErrorWith(t, err, test.text, "error")
			expect.Equal(t, retries(err), true, "to be repeated, as the network is slow")
		})
	}
}

// A WFM that drips its answers to one kind of request does not delay the other kind: the
// agent polls and fetches documents one after the other, and reports beside that.
func TestDripsDelayNoOtherRequests(t *testing.T) {
	s, c := pair(t)
	f := newFleet(2, 100)
	const status = "POST /api/v1/deployments/x/status"
	manifest := func(ctx context.Context) error { _, err := c.Manifest(ctx, ""); return err }
	document := func(ctx context.Context) error {
		m := &wfm.Manifest{StateManifest: &f.manifest}
		return c.Documents(ctx, m, f.manifest.Deployments[:1], func(digest.Digest, []byte) error { return nil })
	}
	report := func(ctx context.Context) error { return c.PostStatus(ctx, "x", []byte("{}")) }
	for name, test := range map[string]struct {
		drips string
		ask   func(context.Context) error
		goes  []func(context.Context) error
	}{
		"a manifest": {manifestRoute, manifest, []func(context.Context) error{report}},
		"a document": {f.documentRoute(0), document, []func(context.Context) error{report}},
		"a report":   {status, report, []func(context.Context) error{manifest, document}},
	} {
		t.Run(name, func(t *testing.T) {
			f.publish(s, "")
			s.handle(status, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
			begun := make(chan struct{}, 1)
			s.handle(test.drips, drip(begun))
			ctx, end := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- test.ask(ctx); close(ended) }()
			<-begun
			for range 3 {
				for _, request := range test.goes {
					expect.OK(t, request(t.Context()))
				}
			}
			select {
			case err := <-ended:
				t.Errorf("what drips ended before the others: %v", err)
			default:
			}
			end()
			<-ended // a report is delivered with the status of its answer
		})
	}
}

func TestASlowAnswerThatKeepsComingIsWaitedFor(t *testing.T) {
	s, c := pair(t, func(o *wfm.Options) { o.Timeout = 800 * time.Millisecond })
	raw := newFleet(1, 10).raw()
	s.handle(manifestRoute, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", margo.ManifestMediaType)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for chunk := range slices.Chunk(raw, len(raw)/5) { // longer than the time of silence that is allowed
			w.Write(chunk)
			http.NewResponseController(w).Flush()
			c.CloseIdle() // does not cut off the answer that is still to come
			<-tick.C
		}
	})
	expect.OK(t, expect.ErrorOf(c.Manifest(t.Context(), "")))
}

func TestID12ID13ConnectionsAreKeptButNotForever(t *testing.T) {
	d := newTrust(t)
	tests := map[string]struct {
		age     time.Duration
		between func(*wfm.Client, *atomic.Uint64)
		want    int32
	}{
		"polls share a connection":           {0, func(*wfm.Client, *atomic.Uint64) {}, 1},
		"an old connection is not used":      {time.Nanosecond, func(*wfm.Client, *atomic.Uint64) {}, 3},
		"none survives a change of identity": {0, func(_ *wfm.Client, trust *atomic.Uint64) { trust.Add(1) }, 3},
		"none survives being given up":       {0, func(c *wfm.Client, _ *atomic.Uint64) { c.CloseIdle() }, 3},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := d.serve(t, "one")
			newFleet(1, 10).publish(s, "")
			var trust atomic.Uint64
			c := client(t, d.device(t), s.URL, func(o *wfm.Options) { o.Limits.ConnectionAge, o.Trust = test.age, trust.Load })
			for range 3 {
				expect.Value(c.Manifest(t.Context(), ""))(t)
				test.between(c, &trust)
			}
			expect.Equal(t, s.accepted.Load(), test.want, "connections")
		})
	}
}

func TestAUTH01URLOfTheWFMIsChecked(t *testing.T) {
	d := newTrust(t)
	config := d.device(t).TLS()
	for url, ok := range map[string]bool{
		"https://wfm.example":                   true,
		"https://wfm.example:8443/v1alpha2/x/":  true,
		"http://wfm.example":                    false,
		"wfm.example":                           false,
		"https://":                              false,
		"https://user:secret@wfm.example":       false,
		"https://wfm.example/?token=x":          false,
		"https://wfm.example/#x":                false,
		"https://wfm.example:port":              false,
		"https://user:secret@wfm.example:port":  false,
		"":                                      false,
		"https://[::1]:8443":                    true,
		"https://wfm.example/%zz":               false,
		"ftp://wfm.example":                     false,
		"https:wfm.example":                     false,
		"https://:8443/":                        false,
		"https://wfm.example/api/../v1alpha2//": true,
	} {
		_, err := wfm.New(wfm.Options{URL: url, TLS: config})
		if (err == nil) != ok || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("New(%q): error %v is wrong, or shows the password", url, err)
		}
	}
	expect.ErrorWith(t, expect.ErrorOf(wfm.New(wfm.Options{URL: "https://wfm.example"})), "without a TLS configuration", "error")
}

func TestERR04RetryLooksThroughEveryWrapping(t *testing.T) {
	busy := &wfm.Error{Status: 503, Problem: margo.ProblemDetail{Retryable: true}, RetryAfter: time.Minute}
	gone := &wfm.Error{Status: 404}
	tests := map[string]struct {
		err   error
		retry bool
		after time.Duration
	}{
		"nothing":               {nil, false, 0},
		"an answer":             {fmt.Errorf("x: %w", busy), true, time.Minute},
		"one of two":            {fmt.Errorf("%w; and %w", gone, busy), true, time.Minute},
		"neither of two":        {errors.Join(gone, wfm.ErrDigestMismatch), false, 0},
		"nothing new":           {wfm.ErrNotModified, false, 0},
		"an error of elsewhere": {io.EOF, false, 0},
	}
	for name, test := range tests {
		if retry, after := wfm.Retry(test.err); retry != test.retry || after != test.after {
			t.Errorf("%s: Retry = %t, %s, want %t, %s", name, retry, after, test.retry, test.after)
		}
	}
}
