package wfm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
)

// unwrapBundle gives the archive with the wanted digest out of an answer. It is
// compressed by itself, so that a Content-Encoding header may be about that
// compression or about another one around it.
func unwrapBundle(a *answer, want digest.Digest, limit int64) ([]byte, error) {
	encoding, err := contentEncoding(a.header)
	if err == nil && encoding == "gzip" {
		if decoded, err := readBody(bytes.NewReader(a.body), encoding, limit); err == nil && digest.FromBytes(decoded) == want {
			return decoded, nil
		}
	}
	if digest.FromBytes(a.body) == want {
		return a.body, nil
	}
	if err != nil {
		return nil, err
	}
	return nil, ErrDigestMismatch
}

// readBundle reads the documents out of a bundle whose digest has been checked.
// It has to hold exactly those that the manifest refers to (DS-16); which file
// is which is told by the digests, names mean nothing.
func readBundle(archive []byte, refs []margo.DeploymentRef, limits Limits) (map[digest.Digest][]byte, error) {
	expected := make(map[digest.Digest]int, len(refs))
	for _, ref := range refs {
		expected[ref.Digest]++
	}
	distinct := len(expected)
	expanded, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBundle, err)
	}
	files := tar.NewReader(&limited{expanded, limits.Expanded})
	documents := make(map[digest.Digest][]byte, len(refs))
	for entries := 0; ; entries++ {
		header, err := files.Next()
		switch {
		case errors.Is(err, io.EOF):
			if len(documents) != distinct {
				return nil, fmt.Errorf("%w: it holds %d of %d documents", ErrBundle, len(documents), distinct)
			}
			return documents, nil
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrBundle, err)
		case entries == limits.Entries:
			return nil, fmt.Errorf("%w: %w: more than %d entries", ErrBundle, ErrTooLarge, limits.Entries)
		}
		document, err := readEntry(files, header, limits.Document)
		if err != nil {
			return nil, fmt.Errorf("%w: entry %.100q: %w", ErrBundle, header.Name, err)
		}
		if document == nil {
			continue
		}
		d := digest.FromBytes(document)
		if expected[d] == 0 {
			return nil, fmt.Errorf("%w: entry %.100q is not a document of the manifest, or is one too many", ErrBundle, header.Name)
		}
		expected[d]--
		documents[d] = document
	}
}

// readEntry returns the content of a file, and nil for what is passed over.
func readEntry(r io.Reader, header *tar.Header, limit int64) ([]byte, error) {
	if !filepath.IsLocal(filepath.FromSlash(header.Name)) && header.Typeflag != tar.TypeXGlobalHeader {
		return nil, errors.New("the name leads out of the archive")
	}
	switch header.Typeflag {
	case tar.TypeDir, tar.TypeXGlobalHeader:
		return nil, nil
	case tar.TypeReg:
	default:
		return nil, fmt.Errorf("is not a regular file (type %q)", header.Typeflag)
	}
	if header.Size > limit {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	document := make([]byte, header.Size)
	if _, err := io.ReadFull(r, document); err != nil {
		return nil, err
	}
	return document, nil
}
