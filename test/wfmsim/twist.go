package wfmsim

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

// draft is a manifest before it is written.
type draft struct {
	client    string
	version   string // as it is written
	documents []listing
	bundle    []byte              // instead of the right one
	replace   func([]byte) []byte // of the manifest as written
}

// listing is one document in a draft.
type listing struct {
	id     string
	digest digest.Digest
	body   []byte
}

// twists are what can be wrong with a manifest, or with the bundle that it names by
// the right digest, and costs who reads it more than its size. What else can be wrong
// is tried out where documents are read, in agent/margo and agent/wfm.
func twists() map[string]func(*draft, fault.Fault) error {
	bundle := func(make func(d *draft, f fault.Fault) ([]byte, error)) func(*draft, fault.Fault) error {
		return func(d *draft, f fault.Fault) (err error) {
			d.bundle, err = make(d, f)
			return err
		}
	}
	return map[string]func(*draft, fault.Fault) error{
		"version-exponent": func(d *draft, _ fault.Fault) error { d.version += "0e-1"; return nil },
		"deep": func(d *draft, _ fault.Fault) error {
			d.replace = func(body []byte) []byte {
				nested := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
				return append([]byte(`{"x":`+nested+`,`), body[1:]...)
			}
			return nil
		},
		"bundle-links": bundle(func(d *draft, _ fault.Fault) ([]byte, error) {
			links := []ociimage.Entry{
				{Name: "link", Type: tar.TypeSymlink, Link: "/etc/passwd"},
				{Name: "hard", Type: tar.TypeLink, Link: "../../etc/passwd"},
			}
			return ociimage.TarGzip(append(links, d.entries()...))
		}),
		"bundle-many": bundle(func(d *draft, f fault.Fault) ([]byte, error) {
			count := cmp.Or(int(f.Bytes), 100_000)
			all := make([]ociimage.Entry, 0, count)
			for i := range count {
				all = append(all, ociimage.Entry{Name: strconv.Itoa(i)})
			}
			return ociimage.TarGzip(append(all, d.entries()...))
		}),
		"bundle-bomb": bundle(func(d *draft, f fault.Fault) ([]byte, error) {
			return tarBomb(d.entries(), cmp.Or(f.Bytes, 1<<30))
		}),
	}
}

// Twists are the names that a fault of kind Twist may have. Those of bundles
// belong to the manifest too, because it names the bundle by its digest.
func Twists() []string { return slices.Sorted(maps.Keys(twists())) }

func (d *draft) twist(f fault.Fault) error {
	if err := twists()[f.What](d, f); err != nil {
		return fmt.Errorf("cannot twist manifest by %s: %w", f.What, err)
	}
	return nil
}

// entries are those of the right bundle.
func (d *draft) entries() []ociimage.Entry {
	var entries []ociimage.Entry
	for _, l := range d.documents {
		entries = append(entries, ociimage.Entry{Name: key(l.id) + ".yaml", Data: l.body})
	}
	return entries
}

// tarBomb is an archive with one more entry, of zeros, that is a thousandth of
// its size as long as it is packed.
func tarBomb(entries []ociimage.Entry, size int64) ([]byte, error) {
	size = (size + 511) / 512 * 512
	var head, out bytes.Buffer
	tw := tar.NewWriter(&head)
	if err := tw.WriteHeader(&tar.Header{Name: "bomb.yaml", Mode: 0o644, Size: size}); err != nil {
		return nil, err
	}
	packed, err := gzipped(head.Bytes())
	if err != nil {
		return nil, err
	}
	out.Write(packed)
	if err := fault.WriteBomb(&out, size); err != nil {
		return nil, err
	}
	rest, err := ociimage.TarGzip(entries) // gzip streams may follow each other
	out.Write(rest)
	return out.Bytes(), err
}

func gzipped(data []byte) ([]byte, error) {
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	if _, err := io.Copy(zw, bytes.NewReader(data)); err != nil {
		return nil, err
	}
	err := zw.Close()
	return out.Bytes(), err
}
