package wfm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
)

// FuzzReadBundle feeds archives whose outer digest is taken for granted, as a
// WFM can publish any. The tar inside is fuzzed, since nobody finds gzip
// checksums by chance; broken gzip is tried as well.
func FuzzReadBundle(f *testing.F) {
	one, two := []byte("id: 1\n"), []byte("id: 2\n")
	refs := []margo.DeploymentRef{{ID: "1", Digest: digest.FromBytes(one)}, {ID: "2", Digest: digest.FromBytes(two)}}
	limits := Limits{Document: 1 << 10, Expanded: 64 << 10, Entries: 8}.WithDefaults()

	pack := func(documents ...[]byte) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, d := range documents {
			expect.Check(f, w.WriteHeader(&tar.Header{Name: "d", Typeflag: tar.TypeReg, Size: int64(len(d))}))
			expect.Value(w.Write(d))(f)
		}
		expect.Check(f, w.Close())
		return b.Bytes()
	}
	f.Add(pack(one, two), true)
	f.Add(pack(two), true)
	f.Add(pack(one, one, two), true)
	f.Add(pack(one, two)[:600], true)
	f.Add([]byte{0x1f, 0x8b, 8, 0}, false)
	f.Fuzz(func(t *testing.T, content []byte, compress bool) {
		if compress {
			var b bytes.Buffer
			z := expect.Value(gzip.NewWriterLevel(&b, gzip.NoCompression))(t)
			expect.Value(z.Write(content))(t)
			expect.Check(t, z.Close())
			content = b.Bytes()
		}
		documents := map[digest.Digest][]byte{}
		err := readBundle(bytes.NewReader(content), refs, limits, func(d digest.Digest, document []byte) error {
			documents[d] = bytes.Clone(document)
			return nil
		})
		if err != nil {
			expect.Error(t, err, ErrBundle, "error")
			return
		}
		expect.Equal(t, len(documents), len(refs), "documents")
		for _, ref := range refs {
			expect.Equal(t, digest.FromBytes(documents[ref.Digest]), ref.Digest, "document %s", ref.ID)
		}
	})
}

func FuzzContentRange(f *testing.F) {
	for _, seed := range []string{
		"", "bytes 0-0/1", "bytes 100-199/200", "bytes 100-199/*", "bytes */200", "bytes 5-4/9", "bytes 0-9/9", "items 0-1/2",
		"bytes 0-9223372036854775807/*", "bytes 00-1/2", "bytes -1-2/3", " BYTES  0-1/2 ", "bytes 0-1", "bytes 0-1/2, 3-4/5",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		first, last, total, ok := parseContentRange(value)
		if !ok {
			return
		}
		if first < 0 || last < first || total >= 0 && total <= last || total < -1 {
			t.Fatalf("%q: %d to %d of %d", value, first, last, total)
		}
		size := "*"
		if total >= 0 {
			size = fmt.Sprint(total)
		}
		again := fmt.Sprintf("bytes %d-%d/%s", first, last, size)
		if f2, l2, t2, ok := parseContentRange(again); !ok || f2 != first || l2 != last || t2 != total {
			t.Fatalf("%q and %q differ", value, again)
		}
	})
}

// FuzzReadBody undoes encodings: no more comes of it than the limit, and what is
// no success is an error of a known kind.
func FuzzReadBody(f *testing.F) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	expect.Value(w.Write(make([]byte, 2000)))(f)
	expect.Check(f, w.Close())
	for _, encoding := range []string{"", "gzip", "identity", "gzip, gzip", "br", "GZIP"} {
		f.Add(packed.Bytes(), encoding, int64(100))
		f.Add(packed.Bytes(), encoding, int64(2000))
		f.Add([]byte("plain"), encoding, int64(5))
		f.Add(packed.Bytes()[:10], encoding, int64(1<<20))
	}
	f.Fuzz(func(t *testing.T, body []byte, header string, limit int64) {
		encoding, err := contentEncoding(http.Header{"Content-Encoding": {header}})
		if err != nil {
			expect.Error(t, err, errEncoding, "error")
			return
		}
		limit = max(limit, -limit, 0) % (1 << 20)
		got, err := readBody(bytes.NewReader(body), encoding, max(limit, 0))
		if int64(len(got)) > max(limit, 0) || err != nil && len(got) > 0 {
			t.Fatalf("%d bytes of at most %d, %v", len(got), limit, err)
		}
	})
}
