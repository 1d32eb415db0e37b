package registry_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteserrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/registry"
	"github.com/margolite/margolite/test/expect"
)

func client(t testing.TB, host string, credentials func(string) (string, string, error)) *registry.Client {
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	if credentials == nil {
		credentials = password("", "")
	}
	return registry.New(registry.Options{
		Host: host, PlainHTTP: true, Client: &http.Client{Transport: transport}, Credentials: credentials,
	})
}

func password(user, secret string) func(string) (string, string, error) {
	return func(string) (string, string, error) { return user, secret, nil }
}

func named(t testing.TB, ref string) reference.Named {
	t.Helper()
	return expect.Value(reference.ParseDockerRef(ref))(t)
}

func read(t testing.TB, c *registry.Client, in reference.Named, desc v1.Descriptor, offset int64) ([]byte, error) {
	t.Helper()
	r, err := c.Open(t.Context(), in, desc, offset)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func code(err error) int {
	var e remoteserrors.ErrUnexpectedStatus
	if !errors.As(err, &e) && errdefs.IsNotFound(err) {
		return http.StatusNotFound
	}
	return e.StatusCode
}

// faked is a registry of one's own.
type faked struct {
	host string

	mu     sync.Mutex
	answer http.HandlerFunc
	asked  []string
}

func fake(t testing.TB, answer http.HandlerFunc) *faked {
	f := &faked{answer: answer}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	f.host = strings.TrimPrefix(server.URL, "http://")
	return f
}

func (f *faked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.asked = append(f.asked, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+r.Header.Get("Range")))
	f.mu.Unlock()
	f.answer(w, r)
}

func (f *faked) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

// content is a blob, and what describes it.
func content(size int) ([]byte, v1.Descriptor) {
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
	return data, v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: digest.FromBytes(data), Size: int64(size)}
}

// comes reads a blob that has to come from a registry.
func comes(t testing.TB, c *registry.Client, from *faked, data []byte, desc v1.Descriptor) {
	t.Helper()
	if got, err := read(t, c, named(t, from.host+"/app"), desc, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// Who may is told by a service that the registry trusts, which is asked in the form that it knows, and once.
func TestTokensComeFromAService(t *testing.T) {
	data, desc := content(100)
	anybody := func(*http.Request) bool { return true }
	byPassword := func(r *http.Request) bool {
		user, password, _ := r.BasicAuth()
		return user == "device" && password == "hunter2" ||
			r.PostFormValue("grant_type") == "password" && r.PostFormValue("username") == "device" && r.PostFormValue("password") == "hunter2"
	}
	byIdentity := func(r *http.Request) bool {
		return r.PostFormValue("grant_type") == "refresh_token" && r.PostFormValue("refresh_token") == "identity"
	}
	const scope = "repository:group/app:pull"
	for name, test := range map[string]struct {
		knows       func(*http.Request) bool
		noPost      bool
		token       string // that it gives; empty: the right one
		credentials func(string) (string, string, error)
		asked       []string
		want        int
	}{
		"anybody":                           {knows: anybody, asked: []string{"GET " + scope}},
		"a password":                        {knows: byPassword, credentials: password("device", "hunter2"), asked: []string{"POST " + scope}},
		"a password, to a service from old": {knows: byPassword, noPost: true, credentials: password("device", "hunter2"), asked: []string{"POST " + scope, "GET " + scope}},
		"an identity token":                 {knows: byIdentity, credentials: password("", "identity"), asked: []string{"POST " + scope}},
		"a wrong password":                  {knows: byPassword, credentials: password("device", "wrong"), asked: []string{"POST " + scope, "GET " + scope}, want: 401},
		"no password":                       {knows: byPassword, asked: []string{"GET " + scope}, want: 401},
		"a token of no use":                 {knows: anybody, token: "another", asked: []string{"GET " + scope}, want: 401},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			service := fake(t, func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.Method+" "+r.FormValue("scope"))
				token := cmp.Or(test.token, "one")
				switch {
				case r.Method == http.MethodPost && test.noPost:
					http.NotFound(w, r)
				case !test.knows(r):
					w.WriteHeader(http.StatusUnauthorized)
				case r.Method == http.MethodPost:
					_ = json.NewEncoder(w).Encode(map[string]any{"access_token": token, "expires_in": 300})
				default:
					_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "expires_in": 300})
				}
			})
			w := fake(t, withToken(service, data))
			c := client(t, w.host, test.credentials)
			downloads := 1
			if test.want == 0 {
				downloads = 8 // which share a token
			}
			var group sync.WaitGroup
			for range downloads {
				group.Go(func() {
					_, err := read(t, c, named(t, w.host+"/group/app"), desc, 0)
					if code(err) != test.want || (err != nil) != (test.want != 0) || err != nil && strings.Contains(err.Error(), "wrong") {
						t.Error(err)
					}
				})
			}
			group.Wait()
			expect.Equal(t, asked, test.asked, "asked for tokens")
		})
	}
}

func TestATokenIsRenewedWhenItIsRefused(t *testing.T) {
	data, desc := content(100)
	for name, test := range map[string]struct {
		expires any // as the service says
		calls   int // for which a token counts
		want    int // tokens, for three calls
	}{
		"it counts":                        {300, 3, 1},
		"nobody knows for how long":        {nil, 3, 1},
		"it is refused before its time":    {300, 1, 3},
		"it counts for a moment":           {0.000000001, 3, 1},
		"it is said to be without an end":  {1e300, 3, 1},
		"it is refused, and has no expiry": {nil, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			given, left := 0, 0
			service := fake(t, func(w http.ResponseWriter, _ *http.Request) {
				given++
				left = test.calls
				_ = json.NewEncoder(w).Encode(map[string]any{"token": fmt.Sprint("token-", given), "expires_in": test.expires})
			})
			w := fake(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != fmt.Sprint("Bearer token-", given) || left == 0 {
					w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+service.host+`/token",error="invalid_token"`)
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				left--
				_, _ = w.Write(data)
			})
			c := client(t, w.host, nil)
			for range 3 {
				comes(t, c, w, data, desc)
			}
			expect.Equal(t, given, test.want, "tokens")
		})
	}
}

// withToken answers who shows the token "one" of a service, which is one way among others to be let in.
func withToken(service *faked, data []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer one" {
			w.Header().Set("WWW-Authenticate", `Negotiate YII/x+y==, Digest realm=d, Basic realm="b", Bearer realm="http://`+service.host+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write(data)
	}
}

// What a client says that nobody may hear but the registry, or the service that it names.
func TestCredentialsAreForTheirHostAlone(t *testing.T) {
	data, desc := content(100)
	secrets := func(host string) (string, string, error) { return "device", "secret of " + host, nil }
	want := func(w http.ResponseWriter, r *http.Request, self string) bool {
		if _, secret, _ := r.BasicAuth(); secret == "secret of "+self {
			return true
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		w.WriteHeader(http.StatusUnauthorized)
		return false
	}
	t.Run("a storage behind it", func(t *testing.T) {
		storage := fake(t, func(w http.ResponseWriter, r *http.Request) {
			expect.True(t, r.Header.Get("Authorization") == "" && r.Referer() == "", "got %v", r.Header)
			_, _ = w.Write(data)
		})
		var w *faked
		w = fake(t, func(rw http.ResponseWriter, r *http.Request) {
			if want(rw, r, w.host) {
				http.Redirect(rw, r, "http://"+storage.host+"/blob?signature=1", http.StatusTemporaryRedirect)
			}
		})
		comes(t, client(t, w.host, secrets), w, data, desc)
	})
	t.Run("another registry behind it", func(t *testing.T) {
		var other, w *faked
		other = fake(t, func(rw http.ResponseWriter, r *http.Request) {
			if want(rw, r, other.host) {
				_, _ = rw.Write(data)
			}
		})
		w = fake(t, func(rw http.ResponseWriter, r *http.Request) {
			if want(rw, r, w.host) {
				http.Redirect(rw, r, "http://"+other.host+r.URL.Path, http.StatusTemporaryRedirect)
			}
		})
		comes(t, client(t, w.host, secrets), w, data, desc)
	})
	t.Run("a token service that sends elsewhere", func(t *testing.T) {
		elsewhere := fake(t, func(_ http.ResponseWriter, r *http.Request) {
			expect.True(t, r.Header.Get("Authorization") == "" && r.PostFormValue("password") == "", "got a secret")
		})
		service := fake(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+elsewhere.host+"/token", http.StatusTemporaryRedirect)
		})
		w := fake(t, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("WWW-Authenticate", `Bearer realm="http://`+service.host+`/token"`)
			rw.WriteHeader(http.StatusUnauthorized)
		})
		if _, err := read(t, client(t, w.host, secrets), named(t, w.host+"/app"), desc, 0); err == nil || strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
	})
	t.Run("none", func(t *testing.T) {
		w := fake(t, func(rw http.ResponseWriter, r *http.Request) { want(rw, r, "") })
		expect.Error(t, expect.ErrorOf(read(t, client(t, w.host, nil), named(t, w.host+"/app"), desc, 0)), docker.ErrInvalidAuthorization, "reading")
	})
	t.Run("a circle", func(t *testing.T) {
		w := fake(t, func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, r.URL.Path, http.StatusFound) })
		if _, err := read(t, client(t, w.host, secrets), named(t, w.host+"/app"), desc, 0); err == nil || len(w.requests()) > 20 {
			t.Errorf("%v after %d requests", err, len(w.requests()))
		}
	})
}

// status answers with one status after the other, the last of them from then on. 0 breaks the connection off, 1 is
// somebody who is busy for an hour.
func status(codes ...int) http.HandlerFunc {
	n := 0
	return func(w http.ResponseWriter, _ *http.Request) {
		n++
		switch c := codes[min(n, len(codes))-1]; c {
		case 0:
			panic(http.ErrAbortHandler)
		case 1:
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
		case http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", "Negotiate, Digest realm=x")
			w.WriteHeader(c)
		default:
			w.Header().Set("Docker-Content-Digest", digest.FromString("").String())
			w.Header().Set("Content-Type", v1.MediaTypeImageManifest)
			w.Header().Set("Content-Length", "0")
			w.WriteHeader(c)
		}
	}
}

func TestDownloadsGoOn(t *testing.T) {
	data, desc := content(1 << 20)
	half := len(data) / 2
	// first sends half of it and breaks off; then comes what is tested.
	first := func(then http.HandlerFunc) http.HandlerFunc {
		calls := 0
		return func(w http.ResponseWriter, r *http.Request) {
			if calls++; calls > 1 {
				then(w, r)
				return
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			_, _ = w.Write(data[:half])
			panic(http.ErrAbortHandler)
		}
	}
	told := func(data []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			_, _ = w.Write(data)
		}
	}
	untold := func(data []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			_, _ = w.Write(data)
		}
	}
	longer := append(data[:len(data):len(data)], 'x')
	partial := func(from, to int, span string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", span)
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(data[from:to])
		}
	}
	ranges := func(w http.ResponseWriter, r *http.Request) {
		var from int
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
		to := min(from+half/4, len(data)) // in pieces
		partial(from, to, fmt.Sprintf("bytes %d-%d/%d", from, to-1, len(data)))(w, r)
	}
	unranged := func(answer http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" {
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				return
			}
			answer(w, r)
		}
	}
	for name, test := range map[string]struct {
		offset int64
		answer http.HandlerFunc
		want   error // nil: all of it comes
	}{
		"where it broke off":         {0, first(ranges), nil},
		"with all of it":             {0, first(told(data)), nil},
		"not at all":                 {0, first(status(http.StatusForbidden)), io.ErrUnexpectedEOF},
		"from where it was left":     {1000, ranges, nil},
		"from the beginning, though": {1000, told(data), nil},
		"from it, and of no length":  {1000, untold(data), nil},
		"somewhere else":             {1000, partial(999, len(data), fmt.Sprintf("bytes 999-%d/%d", len(data)-1, len(data))), registry.ErrContent},
		"of something else":          {1000, partial(1000, len(data), fmt.Sprintf("bytes 1000-%d/%d", len(data), len(data)+1)), registry.ErrContent},
		"nobody says where":          {1000, partial(1000, len(data), ""), registry.ErrContent},
		"beyond its end":             {1000, partial(999, len(data), fmt.Sprintf("bytes 1000-%d/*", len(data))), errdefs.ErrFailedPrecondition},
		"refused":                    {1000, unranged(told(data)), nil},
		"refused, and all of it too": {1000, status(http.StatusRequestedRangeNotSatisfiable), registry.ErrContent},
		"longer than it is":          {0, told(longer), registry.ErrContent},
		"a page":                     {0, page, registry.ErrPage},
		"longer, and of no length":   {0, untold(longer), errdefs.ErrFailedPrecondition},
		"shorter than it is":         {0, told(data[1:]), registry.ErrContent},
		"from beyond its end":        {1<<20 + 1, ranges, errdefs.ErrFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			w := fake(t, test.answer)
			got, err := read(t, client(t, w.host, nil), named(t, w.host+"/app"), desc, test.offset)
			if !errors.Is(err, test.want) || err == nil && !bytes.Equal(got, data[test.offset:]) {
				t.Errorf("%d bytes, %v, want %v", len(got), err, test.want)
			}
			if n := len(w.requests()); n > 10 {
				t.Errorf("asked %d times", n)
			}
		})
	}
}

// What comes is counted, also what is discarded: some registries send all of a part, whatever range is asked for.
func TestWhatIsDiscardedIsCountedToo(t *testing.T) {
	data, desc := content(1000)
	w := fake(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	var came atomic.Int64
	body := expect.Value(client(t, w.host, nil).Open(registry.WithCounter(t.Context(), &came), named(t, w.host+"/app"), desc, 900))(t)
	defer body.Close()
	if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, data[900:]) || came.Load() != int64(len(data)) {
		t.Errorf("%d bytes, %v, %d are counted", len(got), err, came.Load())
	}
}

var ofDigest = "@" + digest.FromString("manifest").String()

func TestRequestsAreSentAgainWhereThatMayHelp(t *testing.T) {
	for name, test := range map[string]struct {
		codes    []int // see status
		want     int   // status of the error; 0: none, -1: some
		requests int
		of       string // what is asked for; empty: a tag
	}{
		"at once":                       {[]int{200}, 0, 1, ""},
		"trouble":                       {[]int{503, 200}, 0, 2, ""},
		"trouble again":                 {[]int{503, 503, 200}, 503, 2, ""},
		"a gateway in trouble":          {[]int{502, 200}, 502, 1, ""},
		"a broken connection":           {[]int{0, 200}, 0, 2, ""},
		"no connection that holds":      {[]int{0}, -1, 2, ""},
		"busy":                          {[]int{429, 429, 200}, 0, 3, ""},
		"busy for long":                 {[]int{429}, 429, 5, ""},
		"busy for very long":            {[]int{1}, 429, 1, ""},
		"too slow":                      {[]int{408, 200}, 0, 2, ""},
		"what nobody can answer":        {[]int{401}, 401, 1, ""},
		"forbidden, which is told then": {[]int{403}, 403, 2, ""},
		"not there":                     {[]int{404, 200}, 404, 1, ""},
		"no HEAD":                       {[]int{405, 200}, 0, 2, ""},
		"neither":                       {[]int{405}, 405, 2, ""},
		// Nothing that fails for a while may look as if the manifest were not there.
		"no connection, by digest":  {[]int{0, 0, 404}, -1, 2, ofDigest},
		"very long busy, by digest": {[]int{1, 404}, 429, 1, ofDigest},
		"not there, by digest":      {[]int{404, 200}, 404, 1, ofDigest},
	} {
		t.Run(name, func(t *testing.T) {
			w := fake(t, status(test.codes...))
			_, err := client(t, w.host, nil).Resolve(t.Context(), named(t, w.host+"/app"+cmp.Or(test.of, ":1")))
			if want := max(test.want, 0); code(err) != want || (err != nil) != (test.want != 0) {
				t.Errorf("%v, want status %d", err, test.want)
			}
			if asked := w.requests(); len(asked) != test.requests {
				t.Errorf("asked for %v, want %d requests", asked, test.requests)
			}
		})
	}
}

func TestManifestsAreDescribedWhateverARegistrySays(t *testing.T) {
	manifest := []byte(`{"schemaVersion":2}`)
	described := map[string]string{"Docker-Content-Digest": digest.FromBytes(manifest).String(), "Content-Length": fmt.Sprint(len(manifest))}
	// called is what describes the manifest, with another media type.
	called := func(mediaType string) map[string]string {
		header := maps.Clone(described)
		header["Content-Type"] = mediaType
		return header
	}
	for name, test := range map[string]struct {
		header map[string]string
		body   []byte
		want   error
		asked  string
	}{
		"all of it":       {described, manifest, nil, "HEAD"},
		"capital letters": {called("Application/VND.oci.image.manifest.v1+JSON ;x=y"), manifest, nil, "HEAD"},
		"a text":          {called("Text/Plain; charset=utf-8"), manifest, nil, "HEAD GET"},
		"bytes":           {called("application/octet-stream"), manifest, nil, "HEAD GET"},
		"JSON":            {called("application/json"), manifest, nil, "HEAD GET"},
		"nothing":         {called(""), manifest, nil, "HEAD GET"},
		"another text":    {called("text/plain"), []byte(`{"schemaVersion":3}`), registry.ErrContent, "HEAD GET"},
		"no JSON":         {map[string]string{"Content-Type": "text/plain"}, []byte("Log in first"), registry.ErrContent, "HEAD GET GET"},
		"no digest":       {map[string]string{"Content-Length": fmt.Sprint(len(manifest))}, manifest, nil, "HEAD GET"},
		"no length":       {map[string]string{"Docker-Content-Digest": described["Docker-Content-Digest"]}, manifest, nil, "HEAD GET"},
		"no real digest":  {map[string]string{"Docker-Content-Digest": "md5:0", "Content-Length": "1"}, manifest, registry.ErrContent, "HEAD"},
		"an endless one":  {nil, make([]byte, registry.MaxManifest+1), registry.ErrContent, "HEAD GET"},
		"Docker's first":  {map[string]string{"Content-Type": "application/vnd.docker.distribution.manifest.v1+prettyjws"}, manifest, registry.ErrOld, "HEAD"},
		"which is a text": {map[string]string{"Content-Type": "text/plain"}, []byte(`{"schemaVersion": 1}`), registry.ErrOld, "HEAD GET GET"},
		"a portal's page": {map[string]string{"Content-Type": "text/html; charset=utf-8"}, manifest, registry.ErrPage, "HEAD"},
	} {
		t.Run(name, func(t *testing.T) {
			w := fake(t, func(rw http.ResponseWriter, r *http.Request) {
				for _, accepted := range []string{v1.MediaTypeImageManifest, v1.MediaTypeImageIndex, "application/vnd.docker.distribution.manifest.list.v2+json"} {
					if strings.HasSuffix(r.URL.Path, "/1") && !strings.Contains(r.Header.Get("Accept"), accepted) {
						t.Errorf("does not accept %s", accepted)
					}
				}
				rw.Header().Set("Content-Type", v1.MediaTypeImageManifest+"; charset=utf-8")
				for key, value := range test.header {
					rw.Header().Set(key, value)
				}
				if r.Method == http.MethodGet {
					rw.Header().Del("Content-Length")
					rw.(http.Flusher).Flush() // its length is not said
					_, _ = rw.Write(test.body)
				}
			})
			desc, err := client(t, w.host, nil).Resolve(t.Context(), named(t, w.host+"/app:1"))
			if !errors.Is(err, test.want) || err == nil && (desc.Digest != digest.FromBytes(manifest) || desc.Size != int64(len(manifest)) || desc.MediaType != v1.MediaTypeImageManifest) {
				t.Errorf("%+v, %v, want %v", desc, err, test.want)
			}
			var asked []string
			for _, line := range w.requests() {
				method, _, _ := strings.Cut(line, " ")
				asked = append(asked, method)
			}
			expect.Equal(t, strings.Join(asked, " "), test.asked, "asked by")
		})
	}
}

// A mirror of several registries is told whose image is meant.
func TestAMirrorIsToldWhoseImageItIs(t *testing.T) {
	asked := make(chan string, 1)
	w := fake(t, func(rw http.ResponseWriter, r *http.Request) {
		asked <- r.URL.RequestURI()
		http.NotFound(rw, r)
	})
	for ref, want := range map[string]string{
		"busybox:1":                   "/v2/library/busybox/manifests/1?ns=docker.io",
		"registry.example:5000/a/b:1": "/v2/a/b/manifests/1?ns=registry.example%3A5000",
		w.host + "/a:1":               "/v2/a/manifests/1",
	} {
		if _, err := client(t, w.host, nil).Resolve(t.Context(), named(t, ref)); !errdefs.IsNotFound(err) {
			t.Error(err)
		}
		expect.Equal(t, <-asked, want, "asked for")
	}
}

// A failed request for a token is not remembered.
func TestATokenServiceMayFail(t *testing.T) {
	data, desc := content(100)
	for name, failed := range map[string]http.HandlerFunc{
		"trouble":    status(http.StatusBadGateway),
		"no token":   func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"token":""}`) },
		"a page":     page,
		"an end":     status(0),
		"no end":     func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2<<20)) },
		"a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) },
		"no end, elsewhere": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusMultipleChoices) // without a place to go
			_, err := io.WriteString(w, `{"token":"`)
			for err == nil && r.Context().Err() == nil {
				_, err = io.WriteString(w, strings.Repeat("a", 64<<10))
			}
		},
		"no JSON yet": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"token":"secret`) },
	} {
		t.Run(name, func(t *testing.T) {
			var mended atomic.Bool
			service := fake(t, func(w http.ResponseWriter, r *http.Request) {
				if !mended.Load() {
					failed(w, r)
					return
				}
				_ = json.NewEncoder(w).Encode(map[string]string{"token": "one"})
			})
			w := fake(t, withToken(service, data))
			c := client(t, w.host, nil)
			if _, err := read(t, c, named(t, w.host+"/app"), desc, 0); err == nil || strings.Contains(err.Error(), "secret") {
				t.Fatal(err)
			}
			if n := len(service.requests()); n > 20 {
				t.Errorf("asked %d times", n)
			}
			mended.Store(true)
			comes(t, c, w, data, desc)
		})
	}
}

func page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "Text/HTML; charset=utf-8")
	_, _ = io.WriteString(w, "<html>Welcome to our hotel</html>")
}

// A registry may lock out who shows a wrong password too often.
func TestARefusedPasswordIsNotShownAgain(t *testing.T) {
	shown := 0
	w := fake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			shown++
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	_, err := client(t, w.host, password("device", "wrong")).Resolve(t.Context(), named(t, w.host+"/app:1"))
	expect.True(t, code(err) == http.StatusUnauthorized && shown == 1, "%v after %d times", err, shown)
}

// No registry may pack a part.
func TestPartsComeAsTheyAre(t *testing.T) {
	data, desc := content(1 << 20)
	w := fake(t, func(w http.ResponseWriter, r *http.Request) {
		expect.Equal(t, r.Header.Get("Accept-Encoding"), "identity", "accepts")
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(data)
	})
	comes(t, client(t, w.host, nil), w, data, desc)
}

// A registry that never answers is asked twice.
func TestARegistryThatNeverAnswersIsLeft(t *testing.T) {
	w := fake(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	transport := &http.Transport{ResponseHeaderTimeout: 50 * time.Millisecond}
	t.Cleanup(transport.CloseIdleConnections)
	c := registry.New(registry.Options{Host: w.host, PlainHTTP: true, Client: &http.Client{Transport: transport}})
	if _, err := c.Resolve(t.Context(), named(t, w.host+"/app:1")); err == nil || len(w.requests()) != 2 {
		t.Errorf("%v after %v", err, w.requests())
	}
}

// URLs that a descriptor names are those of whoever published it.
func TestPartsComeFromTheRegistryAlone(t *testing.T) {
	data, desc := content(100)
	elsewhere := fake(t, func(http.ResponseWriter, *http.Request) { t.Error("asked somebody else") })
	w := fake(t, func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(data) })
	desc.URLs = []string{"http://" + elsewhere.host + "/blob"}
	comes(t, client(t, w.host, nil), w, data, desc)
}

// What containerd's client logs doesn't get out: it holds URLs and headers.
func TestNothingIsLogged(t *testing.T) {
	var logged bytes.Buffer
	before := log.L.Logger.Out
	log.L.Logger.SetOutput(&logged)
	t.Cleanup(func() { log.L.Logger.SetOutput(before) })
	w := fake(t, http.NotFound)
	c := client(t, w.host, nil)
	_, _ = c.Resolve(t.Context(), named(t, w.host+"/app:1"))
	_, _ = c.Referrers(t.Context(), named(t, w.host+"/app"), digest.FromString("app"))
	expect.Equal(t, logged.String(), "", "logged")
}
