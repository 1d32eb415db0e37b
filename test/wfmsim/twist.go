package wfmsim

import (
	"archive/tar"
	"bytes"
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
	client     string
	version    uint64
	number     string // the version as it is written
	documents  []listing
	bundle     []byte // instead of the right one
	noBundle   bool   // the member is missing
	nullBundle bool
	replace    func([]byte) []byte // of the manifest as written
}

// listing is one document in a draft.
type listing struct {
	id     string
	digest digest.Digest
	body   []byte
}

// twists are what can be wrong with a manifest, or with the bundle that it names
// by the right digest: all that a digest does not protect from.
func twists() map[string]func(*draft, fault.Fault) error {
	text := func(number string) func(*draft, fault.Fault) error {
		return func(d *draft, _ fault.Fault) error {
			d.number = number
			return nil
		}
	}
	bundle := func(make func(d *draft, f fault.Fault) ([]byte, error)) func(*draft, fault.Fault) error {
		return func(d *draft, f fault.Fault) (err error) {
			d.bundle, err = make(d, f)
			return err
		}
	}
	entries := func(change func([]ociimage.Entry) []ociimage.Entry) func(*draft, fault.Fault) error {
		return bundle(func(d *draft, _ fault.Fault) ([]byte, error) { return ociimage.TarGzip(change(d.entries())) })
	}
	add := func(more ...ociimage.Entry) func([]ociimage.Entry) []ociimage.Entry {
		return func(all []ociimage.Entry) []ociimage.Entry { return append(more, all...) }
	}
	return map[string]func(*draft, fault.Fault) error{
		// The version.
		"version-exponent": func(d *draft, _ fault.Fault) error { d.number += "0e-1"; return nil },
		"version-decimal":  func(d *draft, _ fault.Fault) error { d.number += ".0"; return nil },
		"version-fraction": func(d *draft, _ fault.Fault) error { d.number += ".5"; return nil },
		"version-max":      text("18446744073709551615"),
		"version-overflow": text("18446744073709551616"),
		"version-zero":     text("0"),
		"version-negative": text("-1"),
		"version-text":     func(d *draft, _ fault.Fault) error { d.number = strconv.Quote(d.number); return nil },
		"version-missing":  text(""),
		"version-lower": func(d *draft, _ fault.Fault) error {
			d.number = strconv.FormatUint(max(d.version-1, 1), 10)
			return d.dropLast()
		},
		"version-same": func(d *draft, _ fault.Fault) error { return d.dropLast() },

		// The list.
		"duplicate": func(d *draft, _ fault.Fault) error {
			if len(d.documents) > 0 {
				d.documents = append(d.documents, d.documents[0])
			}
			return nil
		},
		"conflict": func(d *draft, _ fault.Fault) error {
			if len(d.documents) > 0 {
				first := d.documents[0]
				first.digest = digest.FromString("another revision of it")
				d.documents = append(d.documents, first)
			}
			return nil
		},
		"id-case": func(d *draft, _ fault.Fault) error {
			for i := range d.documents {
				d.documents[i].id = strings.ToUpper(d.documents[i].id)
			}
			return nil
		},
		"id-no-uuid": func(d *draft, _ fault.Fault) error {
			for i := range d.documents {
				d.documents[i].id = "no-uuid-" + strconv.Itoa(i)
			}
			return nil
		},
		"sha512": func(d *draft, _ fault.Fault) error {
			for i := range d.documents {
				d.documents[i].digest = digest.SHA512.FromBytes(d.documents[i].body)
			}
			return nil
		},
		"empty": func(d *draft, _ fault.Fault) error { d.documents, d.nullBundle = nil, true; return nil },
		"not-json": func(d *draft, _ fault.Fault) error {
			d.replace = func([]byte) []byte { return []byte("{") }
			return nil
		},
		"deep": func(d *draft, _ fault.Fault) error {
			d.replace = func(body []byte) []byte {
				nested := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
				return append([]byte(`{"x":`+nested+`,`), body[1:]...)
			}
			return nil
		},

		// The bundle.
		"no-bundle":   func(d *draft, _ fault.Fault) error { d.noBundle = true; return nil },
		"null-bundle": func(d *draft, _ fault.Fault) error { d.nullBundle = true; return nil },
		"bundle-empty": func(d *draft, _ fault.Fault) (err error) {
			d.documents = nil
			d.bundle, err = ociimage.TarGzip(nil)
			return err
		},
		"bundle-missing-entry": entries(func(all []ociimage.Entry) []ociimage.Entry { return all[:max(len(all)-1, 0)] }),
		"bundle-extra-entry":   entries(add(ociimage.Entry{Name: "extra.yaml", Data: []byte("id: extra\n")})),
		"bundle-double-entry": entries(func(all []ociimage.Entry) []ociimage.Entry {
			return append(all, all...)
		}),
		"bundle-odd-names": entries(func(all []ociimage.Entry) []ociimage.Entry {
			for i := range all {
				all[i].Name = "deployments/" + strconv.Itoa(i)
			}
			return add(ociimage.Entry{Name: "deployments/", Type: tar.TypeDir})(all)
		}),
		"bundle-paths": entries(add(
			ociimage.Entry{Name: "../../../../tmp/margolite-escaped", Data: []byte("escaped")},
			ociimage.Entry{Name: "/tmp/margolite-escaped", Data: []byte("escaped")},
			ociimage.Entry{Name: "a/../../b", Data: []byte("escaped")},
		)),
		"bundle-links": entries(add(
			ociimage.Entry{Name: "link", Type: tar.TypeSymlink, Link: "/etc/passwd"},
			ociimage.Entry{Name: "hard", Type: tar.TypeLink, Link: "../../etc/passwd"},
		)),
		"bundle-devices": entries(add(
			ociimage.Entry{Name: "null", Type: tar.TypeChar}, ociimage.Entry{Name: "pipe", Type: tar.TypeFifo},
		)),
		"bundle-many": bundle(func(d *draft, f fault.Fault) ([]byte, error) {
			count := 100_000
			if f.Bytes > 0 {
				count = int(f.Bytes)
			}
			all := make([]ociimage.Entry, 0, count)
			for i := range count {
				all = append(all, ociimage.Entry{Name: strconv.Itoa(i)})
			}
			return ociimage.TarGzip(append(all, d.entries()...))
		}),
		"bundle-bomb": bundle(func(d *draft, f fault.Fault) ([]byte, error) {
			size := int64(1 << 30)
			if f.Bytes > 0 {
				size = f.Bytes
			}
			return tarBomb(d.entries(), size)
		}),
		"bundle-not-gzip": bundle(func(d *draft, _ fault.Fault) ([]byte, error) { return ociimage.Tar(d.entries()) }),
		"bundle-not-tar": bundle(func(*draft, fault.Fault) ([]byte, error) {
			return gzipped([]byte(strings.Repeat("this is not an archive ", 100)))
		}),
		"bundle-cut": bundle(func(d *draft, _ fault.Fault) ([]byte, error) {
			whole, err := ociimage.TarGzip(d.entries())
			return whole[:len(whole)/2], err
		}),
		"bundle-trailing": bundle(func(d *draft, _ fault.Fault) ([]byte, error) {
			whole, err := ociimage.TarGzip(d.entries())
			return append(whole, "and more"...), err
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

// dropLast makes it another content.
func (d *draft) dropLast() (err error) {
	if len(d.documents) > 0 {
		d.documents = d.documents[:len(d.documents)-1]
	}
	if len(d.documents) == 0 {
		d.nullBundle = true
		return nil
	}
	d.bundle, err = ociimage.TarGzip(d.entries())
	return err
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

// twistedBundle is a bundle that a twisted manifest named.
type twistedBundle struct {
	client string
	digest digest.Digest
	body   []byte
}

// maxTwisted bounds the twisted bundles kept: clients fetch them at once.
const maxTwisted = 4

// remember keeps a twisted bundle for the client to fetch. The caller holds the
// lock.
func (s *Server) remember(client string, body []byte) {
	name := digest.FromBytes(body)
	s.twisted = slices.DeleteFunc(s.twisted, func(t twistedBundle) bool { return t.client == client && t.digest == name })
	s.twisted = append(s.twisted, twistedBundle{client, name, body})
	if extra := len(s.twisted) - maxTwisted; extra > 0 {
		s.twisted = slices.Delete(s.twisted, 0, extra)
	}
}
