package wfm_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// get asks for those of a fleet's documents that need names by index; all of
// them if it names none.
func get(t *testing.T, c *wfm.Client, f *fleet, need ...int) (map[digest.Digest][]byte, error) {
	t.Helper()
	refs := f.manifest.Deployments
	if len(need) > 0 {
		refs = nil
		for _, i := range need {
			refs = append(refs, f.manifest.Deployments[i])
		}
	}
	documents := map[digest.Digest][]byte{}
	err := c.Documents(t.Context(), &wfm.Manifest{StateManifest: &f.manifest}, refs, func(d digest.Digest, document []byte) error {
		expect.True(t, digest.FromBytes(document) == d && documents[d] == nil, "got a document that is not %s, or twice", d)
		documents[d] = bytes.Clone(document)
		return nil
	})
	if err != nil {
		return documents, err
	}
	for _, ref := range refs {
		expect.Equal(t, documents[ref.Digest], f.documents[ref.ID], "document of %s is not the one published", ref.ID)
	}
	expect.Equal(t, len(documents), len(refs), "documents")
	return documents, nil
}

// Sizes choose the way, and decide nothing else.
func TestDS12DS13BundleOrSingleDocuments(t *testing.T) {
	s, c := pair(t)
	tests := map[string]struct {
		fleet  *fleet
		need   []int
		bundle bool
	}{
		"everything is new":                               {newFleet(3, 100), nil, true},
		"one of many is new":                              {newFleet(10, 100), []int{4}, false},
		"many of many are new and the bundle is small":    {newFleet(10, 100), []int{0, 1, 2, 3, 4, 5}, true},
		"two of many are new and the bundle is large":     {newFleet(10, 20000).sized(200000, 20000), []int{0, 1}, false},
		"two are new, a round trip outweighs their bytes": {newFleet(10, 100), []int{0, 1}, true},
		"no sizes given, one of many":                     {newFleet(10, 100).sized(0, 0), []int{0}, false},
		"no sizes given, most of many":                    {newFleet(10, 100).sized(0, 0), []int{0, 1, 2, 3, 4, 5, 6, 7}, true},
		"the bundle is said to be larger than allowed":    {newFleet(3, 100).sized(1<<40, 100), nil, false},
		"sizes are nonsense":                              {newFleet(10, 100).sized(1000, 1<<64-1), []int{0, 1}, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.fleet.publish(s, "")
			s.took()
			expect.Value(get(t, c, test.fleet, test.need...))(t)
			took := s.took()
			expect.Equal(t, slices.Equal(took, []string{test.fleet.bundleRoute()}), test.bundle, "the bundle alone is in requests %q", took)
		})
	}
}

// A strict device takes documents from the bundle alone, as the conformance toolkit wants.
// What it makes of a bundle that is no good is shown by
// TestDS16OnlyABundleOfExactlyTheDocumentsIsUsed.
func TestAStrictDeviceNeedsTheBundle(t *testing.T) {
	s, c := pair(t, func(o *wfm.Options) { o.Strict = true })
	f := newFleet(10, 100)
	f.publish(s, "")
	s.took()
	if _, err := get(t, c, f, 4); err != nil || !slices.Equal(s.took(), []string{f.bundleRoute()}) {
		t.Errorf("%v; want the bundle", err)
	}
}

func TestNothingNeededIsNoRequest(t *testing.T) {
	s, c := pair(t)
	err := c.Documents(t.Context(), &wfm.Manifest{StateManifest: &margo.StateManifest{Version: 1}}, nil, func(d digest.Digest, _ []byte) error {
		t.Errorf("got document %s", d)
		return nil
	})
	expect.True(t, err == nil && len(s.took()) == 0, "error %v", err)
}

// TestDS16OnlyABundleOfExactlyTheDocumentsIsUsed spoils the bundle in every way. The documents
// one by one are good, and are what the device falls back on; for a strict one nothing is left,
// neither for its caller nor in the spool. What is refused takes little memory.
func TestDS16OnlyABundleOfExactlyTheDocumentsIsUsed(t *testing.T) {
	s := serve(t)
	doc := func(f *fleet, i int) file {
		ref := f.manifest.Deployments[i]
		return file{name: ref.ID, content: f.documents[ref.ID]}
	}
	repacked := func(files func(f *fleet) []file) func(*fleet) http.HandlerFunc {
		return func(f *fleet) http.HandlerFunc {
			f.pack(archive(files(f)...))
			return serveBytes(f.bundle)
		}
	}
	served := func(handler http.HandlerFunc) func(*fleet) http.HandlerFunc {
		return func(*fleet) http.HandlerFunc { return handler }
	}
	partial := func(contentRange string) func(*fleet) http.HandlerFunc {
		return served(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", contentRange)
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write([]byte("x"))
		})
	}
	endless := func(w http.ResponseWriter, _ *http.Request) {
		for err := error(nil); err == nil; {
			_, err = w.Write(make([]byte, 64<<10))
		}
	}
	unending := func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "1099511627776") }
	const invalid = `{"type":"https://docs.margo.org/specification/problem-types#invalid-bundle","title":"x","status":404}`
	tests := map[string]struct {
		bundle func(f *fleet) http.HandlerFunc
		is     error // what a strict device says; nil: anything
		good   bool  // the bundle suffices
		again  bool  // the rest of it was asked for
	}{
		"it is not there":           {served(serveProblem(404, invalid)), wfm.ErrSuperseded, false, false},
		"it has another digest":     {served(serveBytes([]byte("something else"))), wfm.ErrDigestMismatch, false, false},
		"it was cut off":            {func(f *fleet) http.HandlerFunc { return serveTruncated(f.bundle[:len(f.bundle)-9]) }, io.ErrUnexpectedEOF, false, true},
		"it is announced as longer": {func(f *fleet) http.HandlerFunc { return serveTruncated(f.bundle) }, nil, true, false},
		"it is no gzip":             {func(f *fleet) http.HandlerFunc { f.pack([]byte("PK")); return serveBytes(f.bundle) }, wfm.ErrBundle, false, false},
		"it is no tar":              {func(f *fleet) http.HandlerFunc { f.pack(zip([]byte("PK"))); return serveBytes(f.bundle) }, wfm.ErrBundle, false, false},
		"it has no end":             {served(endless), wfm.ErrTooLarge, false, false},
		"its length has no end":     {served(unending), wfm.ErrTooLarge, false, false},
		"a part of too much":        {partial("bytes 0-0/1099511627776"), wfm.ErrTooLarge, false, false},
		"a part not asked for":      {partial("bytes 10-10/11"), nil, false, false},
		"a part without its place":  {partial(""), nil, false, false},
		"it expands beyond measure": {repacked(func(f *fleet) []file {
			files := []file{doc(f, 0), doc(f, 1)}
			return append(files, slices.Repeat([]file{{name: strings.Repeat("d", 900), kind: tar.TypeDir}}, 900)...)
		}), wfm.ErrTooLarge, false, false},
		"a document is missing":     {repacked(func(f *fleet) []file { return []file{doc(f, 0)} }), wfm.ErrBundle, false, false},
		"a file is one too many":    {repacked(func(f *fleet) []file { return []file{doc(f, 0), {name: "README", content: []byte("hi")}, doc(f, 1)} }), wfm.ErrBundle, false, false},
		"a document is in it twice": {repacked(func(f *fleet) []file { return []file{doc(f, 0), doc(f, 1), doc(f, 1)} }), wfm.ErrBundle, false, false},
		"a document was changed":    {repacked(func(f *fleet) []file { return []file{doc(f, 0), {name: "x", content: []byte("y")}} }), wfm.ErrBundle, false, false},
		"a document is too large":   {repacked(func(f *fleet) []file { return []file{doc(f, 0), {name: "x", content: make([]byte, 64<<20)}} }), wfm.ErrTooLarge, false, false},
		"there is a symbolic link": {repacked(func(f *fleet) []file {
			return []file{doc(f, 0), doc(f, 1), {name: "l", kind: tar.TypeSymlink, link: "/etc"}}
		}), wfm.ErrBundle, false, false},
		"there is a device":  {repacked(func(f *fleet) []file { return []file{doc(f, 0), doc(f, 1), {name: "c", kind: tar.TypeChar}} }), wfm.ErrBundle, false, false},
		"a name is absolute": {repacked(func(f *fleet) []file { return []file{doc(f, 0), {name: "/abs", content: doc(f, 1).content}} }), wfm.ErrBundle, false, false},
		"a name climbs":      {repacked(func(f *fleet) []file { return []file{doc(f, 0), {name: "a/../../b", content: doc(f, 1).content}} }), wfm.ErrBundle, false, false},
		"there are too many entries": {repacked(func(f *fleet) []file {
			return append(slices.Repeat([]file{{name: "d/", kind: tar.TypeDir}}, 1001), doc(f, 0), doc(f, 1))
		}), wfm.ErrTooLarge, false, false},
		"names mean nothing": {repacked(func(f *fleet) []file {
			return []file{{name: "b.yaml", content: doc(f, 0).content}, {name: "a", content: doc(f, 1).content}}
		}), nil, true, false},
		"folders and pax headers": {repacked(func(f *fleet) []file {
			return []file{{name: "pax", kind: tar.TypeXGlobalHeader}, {name: "./", kind: tar.TypeDir}, doc(f, 1), doc(f, 0)}
		}), nil, true, false},
		"gzip around the gzip":           {func(f *fleet) http.HandlerFunc { return serveEncoded("gzip", zip(f.bundle)) }, nil, true, false},
		"its own gzip named as encoding": {func(f *fleet) http.HandlerFunc { return serveEncoded("gzip", f.bundle) }, nil, true, false},
		"some encoding that is not true": {func(f *fleet) http.HandlerFunc { return serveEncoded("br", f.bundle) }, nil, true, false},
	}
	bounded := func(o *wfm.Options) { o.Limits = wfm.Limits{Bundle: 2 << 20, Entries: 1000} }
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFleet(2, 100)
			handler := test.bundle(f)
			f.publish(s, "")
			s.handle(f.bundleRoute(), handler)
			s.took()
			fatal := errors.Is(test.is, wfm.ErrDigestMismatch) // it arrived, and is not what the manifest says (DS-18)
			if _, err := get(t, s.client(t, bounded), f); (err != nil) != fatal {
				t.Fatal(err)
			}
			took := s.took()
			want := []string{f.bundleRoute(), f.documentRoute(0), f.documentRoute(1)}
			if test.good || fatal {
				want = want[:1]
			}
			if test.again {
				want = append(want[:1:1], want...)
			}
			expect.Equal(t, took, want, "requests")

			spool := incoming(t, store.Options{})
			strict := s.client(t, bounded, withSpool(spool), func(o *wfm.Options) { o.Strict = true })
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			documents, err := get(t, strict, f)
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
				t.Errorf("%d KiB were allocated", took>>10)
			}
			if (err == nil) != test.good || test.is != nil && !errors.Is(err, test.is) || err != nil && len(documents) > 0 {
				t.Errorf("a strict device gets %d documents, error %v, want %v", len(documents), err, test.is)
			}
			if n := expect.Value(spool.Size(f.manifest.Bundle.Digest))(t); n > 0 && !test.good && !test.again {
				t.Errorf("%d bytes stay in the spool", n)
			}
		})
	}
}

// What cannot be had one by one is taken from the bundle, but a document that arrived
// and does not match its digest refuses the change as a whole.
func TestDS18ADocumentThatDoesNotMatchRefusesTheChange(t *testing.T) {
	s := serve(t)
	refused := func(status int, header ...string) func([]byte) http.HandlerFunc {
		return func([]byte) http.HandlerFunc { return serveProblem(status, "", header...) }
	}
	tests := map[string]struct {
		document func(content []byte) http.HandlerFunc
		good     bool // no bundle needed
		fatal    bool // no use in trying the bundle
		garbled  bool // it arrived and does not match; the bundle comes first from then on
	}{
		"as it should be":                  {document: serveBytes, good: true},
		"DS-10 compressed":                 {document: func(content []byte) http.HandlerFunc { return serveEncoded("gzip", zip(content)) }, good: true},
		"not there":                        {document: refused(404)},
		"something else of the right size": {document: func(content []byte) http.HandlerFunc { return serveBytes(bytes.ToUpper(content)) }, garbled: true},
		"empty":                            {document: func([]byte) http.HandlerFunc { return serveBytes(nil) }, garbled: true},
		"cut off":                          {document: serveTruncated},
		"far too large":                    {document: func([]byte) http.HandlerFunc { return serveBytes(make([]byte, 300<<10)) }},
		"a bomb":                           {document: func([]byte) http.HandlerFunc { return serveEncoded("gzip", zip(make([]byte, 10<<20))) }},
		"DS-10 with a line added":          {document: func(content []byte) http.HandlerFunc { return serveBytes(append([]byte("\n"), content...)) }, garbled: true},
		"not for this one":                 {document: refused(403), fatal: true},
		"ERR-04 the WFM is busy":           {document: refused(503, "Retry-After", "9"), fatal: true},
		"the WFM fails":                    {document: refused(500)},
		"a redirect instead":               {document: refused(307, "Location", "/other"), fatal: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f, c := newFleet(10, 100), s.client(t)
			f.publish(s, "")
			s.handle(f.documentRoute(2), test.document(f.documents[f.manifest.Deployments[2].ID]))
			s.took()
			_, err := get(t, c, f, 2)
			if (err != nil) != (test.fatal || test.garbled) || errors.Is(err, wfm.ErrDigestMismatch) != test.garbled {
				t.Fatal(err)
			}
			want := []string{f.documentRoute(2), f.bundleRoute()}
			if test.good || test.fatal || test.garbled {
				want = want[:1]
			}
			expect.Equal(t, s.took(), want, "requests")
			if !test.garbled {
				return
			}
			if _, err := get(t, c, f, 2); err != nil || !slices.Equal(s.took(), []string{f.bundleRoute()}) {
				t.Errorf("then: %v; want the bundle", err)
			}
		})
	}
}

// A WFM that asks for patience is left alone (ERR-04). Next time the documents come by
// the way that was not tried, however long it goes on to ask.
func TestDS12TheOtherWayIsNextAfterOneThatIsBusy(t *testing.T) {
	s := serve(t)
	for name, test := range map[string]struct {
		need  []int
		busy  func(f *fleet) string
		other func(f *fleet) string
	}{
		"the bundle":       {[]int{2}, func(f *fleet) string { return f.documentRoute(2) }, (*fleet).bundleRoute},
		"single documents": {nil, (*fleet).bundleRoute, func(f *fleet) string { return f.documentRoute(0) }},
	} {
		t.Run(name, func(t *testing.T) {
			f, c := newFleet(10, 100), s.client(t)
			f.publish(s, "")
			s.handle(test.busy(f), serveProblem(503, "", "Retry-After", "9"))
			s.took()
			for round := range 3 {
				_, err := get(t, c, f, test.need...)
				expect.Equal(t, err == nil, round%2 == 1, "round %d: success (%v)", round, err)
				want := test.busy(f)
				if round%2 == 1 {
					want = test.other(f)
				}
				if took := s.took(); len(took) == 0 || took[0] != want {
					t.Errorf("round %d: requests %q, want %q first", round, took, want)
				}
			}
		})
	}
}

func TestDS14DocumentsThatAreGoneAreSuperseded(t *testing.T) {
	_, c := pair(t)
	for name, need := range map[string][]int{"by bundle first": nil, "one by one first": {0}} {
		f := newFleet(10, 100) // published nowhere
		_, err := get(t, c, f, need...)
		expect.Error(t, err, wfm.ErrSuperseded, "%s: error", name)
		if retries(err) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: to be repeated: %t, or of several lines: %q", name, retries(err), err)
		}
	}
}

func TestDocumentsAreBoundedEitherWay(t *testing.T) {
	s := serve(t)
	f := newFleet(3, 1000)
	f.publish(s, "")
	for name, limits := range map[string]wfm.Limits{
		"each of them":      {Document: 500},
		"all of them":       {Expanded: 2500},
		"bundle and single": {Bundle: 10, Document: 10},
	} {
		c := s.client(t, func(o *wfm.Options) { o.Limits = limits })
		expect.Error(t, expect.ErrorOf(get(t, c, f)), wfm.ErrTooLarge, "%s: error", name)
	}
}

func TestGivingUpIsNotRetryable(t *testing.T) {
	s := serve(t)
	f := newFleet(1, 10)
	ctx, cancel := context.WithCancel(t.Context())
	s.handle(f.bundleRoute(), func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	err := s.client(t).Documents(ctx, &wfm.Manifest{StateManifest: &f.manifest}, f.manifest.Deployments, nil)
	expect.Error(t, err, context.Canceled, "error")
	expect.Equal(t, retries(err), false, "what the caller gave up is to be repeated")
}

// TestDS09URLsOfTheManifest is about where documents are fetched from. Another origin is a
// real server, and fails the test when connected to.
func TestDS09URLsOfTheManifest(t *testing.T) {
	d := newTrust(t)
	i := d.device(t)
	foreign := d.bystander(t)
	path := func(f *fleet) string { return strings.TrimPrefix(f.documentRoute(2), "GET ") }
	legacy := func(f *fleet) string { return strings.Replace(path(f), "/api/v1/", "/api/v1/clients/c-1/", 1) }

	tests := map[string]struct {
		base  string // path of the configured URL
		mount string // where the server really is
		url   func(f *fleet, own string) string
		want  []string // prefixes of the paths asked for, in order; nil: the path alone
		gone  bool     // the document is not to be had
	}{
		"relative to the origin": {url: func(f *fleet, _ string) string { return path(f) }},
		"absolute, same origin":  {url: func(f *fleet, own string) string { return own + path(f) }},
		"absolute, scheme in upper case": {
			url: func(f *fleet, own string) string { return strings.Replace(own, "https", "HTTPS", 1) + path(f) },
		},
		"with a fragment": {url: func(f *fleet, _ string) string { return path(f) + "#x" }},
		"origin-relative, though mounted below a prefix": {
			"/v1alpha2/margo", "/v1alpha2/margo", func(f *fleet, _ string) string { return path(f) }, []string{"", "/v1alpha2/margo"}, false,
		},
		"origin-relative with the prefix in it": {
			"/v1alpha2/margo/", "/v1alpha2/margo", func(f *fleet, _ string) string { return "/v1alpha2/margo" + path(f) }, []string{"/v1alpha2/margo"}, false,
		},
		"relative to the base": {
			"/v1alpha2/margo", "/v1alpha2/margo", func(f *fleet, _ string) string { return strings.TrimPrefix(path(f), "/") }, []string{"/v1alpha2/margo"}, false,
		},
		"origin-relative, served at the origin": {base: "/v1alpha2/margo", url: func(f *fleet, _ string) string { return path(f) }},
		"another origin":                        {url: func(f *fleet, _ string) string { return foreign + path(f) }},
		"the own host as user name": {
			url: func(f *fleet, own string) string {
				return own + "@" + strings.TrimPrefix(foreign, "https://") + path(f)
			},
		},
		"a user name for the own host": {
			url: func(f *fleet, own string) string {
				return strings.Replace(own, "https://", "https://u:p@", 1) + path(f)
			},
		},
		"plain HTTP":                     {url: func(f *fleet, own string) string { return strings.Replace(own, "https", "http", 1) + path(f) }},
		"a file":                         {url: func(*fleet, string) string { return "file:///etc/passwd" }},
		"none":                           {url: func(*fleet, string) string { return "" }},
		"of an earlier revision":         {url: func(f *fleet, _ string) string { return legacy(f) }, want: []string{"legacy", ""}},
		"no URL at all":                  {url: func(*fleet, string) string { return "http://[::1" }},
		"a wrong path on the own origin": {url: func(*fleet, string) string { return "/elsewhere" }, want: []string{"elsewhere", ""}},
		"nowhere":                        {"/a", "/b", func(f *fleet, _ string) string { return path(f) }, []string{"", "/a"}, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := d.serve(t, "one")
			f := newFleet(10, 100)
			f.publish(s, test.mount)
			f.manifest.Bundle = nil // so that only the documents are asked for
			f.manifest.Deployments[2].URL = test.url(f, s.URL)

			_, err := get(t, client(t, i, s.URL+test.base), f, 2)
			expect.Equal(t, err != nil, test.gone, "gone (%v)", err)
			if test.want == nil {
				test.want = []string{""}
			}
			var want []string
			for _, prefix := range test.want {
				switch prefix {
				case "elsewhere":
					want = append(want, "GET /elsewhere")
				case "legacy":
					want = append(want, "GET "+legacy(f))
				default:
					want = append(want, "GET "+prefix+path(f))
				}
			}
			expect.Equal(t, s.took(), want, "requests")
		})
	}
}

func TestAMountPointIsFoundOutOnce(t *testing.T) {
	s := serve(t)
	f := newFleet(4, 100)
	f.publish(s, "/v1")
	f.manifest.Bundle = nil
	expect.Value(get(t, client(t, s.trust.device(t), s.URL+"/v1"), f))(t)
	expect.Equal(t, len(s.took()), 5, "requests for 4 documents")
}
