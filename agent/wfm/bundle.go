package wfm

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
)

// readBundle gives the documents of a bundle whose digest has been checked to each, one at a
// time; each must not keep the bytes. The bundle has to hold exactly those that the manifest
// refers to (DS-16), which is known only at its end; digests identify the files, and names mean
// nothing. An error of each ends it and is returned unchanged.
func readBundle(archive io.Reader, refs []margo.DeploymentRef, limits Limits, each func(digest.Digest, []byte) error) error {
	expected := make(map[digest.Digest]int, len(refs))
	for _, ref := range refs {
		expected[ref.Digest]++
	}
	missing := len(expected)
	found := make(map[digest.Digest]bool, missing)
	var packed, unpacked int64 // bytes so far
	expanded, err := gzip.NewReader(noted{archive, func(n int, err error) error {
		packed += int64(n)
		return err
	}})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBundle, err)
	}
	files := tar.NewReader(noted{limited(expanded, limits.Expanded), func(n int, err error) error {
		if unpacked += int64(n); unpacked > freeRatio && unpacked/maxRatio > packed {
			return fmt.Errorf("%w: it expands to more than %d times its size", ErrTooLarge, maxRatio)
		}
		return err
	}})
	var buffer []byte
	for entries := 0; ; entries++ {
		header, err := files.Next()
		switch {
		case errors.Is(err, io.EOF):
			if missing > 0 {
				return fmt.Errorf("%w: it holds %d of %d documents", ErrBundle, len(found), len(expected))
			}
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", ErrBundle, err)
		case entries == limits.Entries:
			return fmt.Errorf("%w: %w: more than %d entries", ErrBundle, ErrTooLarge, limits.Entries)
		}
		regular, err := checkEntry(header, limits)
		if err == nil && regular {
			buffer, err = readEntry(files, header.Size, buffer)
		}
		if err != nil {
			return fmt.Errorf("%w: entry %.100q: %w", ErrBundle, header.Name, err)
		}
		if !regular {
			continue
		}
		d := digest.FromBytes(buffer)
		if expected[d] == 0 {
			return fmt.Errorf("%w: entry %.100q is not a document of the manifest, or is a duplicate", ErrBundle, header.Name)
		}
		expected[d]--
		if found[d] {
			continue
		}
		found[d] = true
		missing--
		if err := each(d, buffer); err != nil {
			return err
		}
	}
}

// checkEntry says whether to read an entry as a file or to skip it.
func checkEntry(header *tar.Header, limits Limits) (regular bool, err error) {
	switch {
	case header.Typeflag == tar.TypeXGlobalHeader:
		return false, nil
	case !filepath.IsLocal(filepath.FromSlash(header.Name)):
		return false, errors.New("the name leads out of the archive")
	case header.Typeflag == tar.TypeDir:
		return false, nil
	case header.Typeflag != tar.TypeReg:
		return false, fmt.Errorf("is not a regular file (type %q)", header.Typeflag)
	case header.Size > limits.Document:
		return false, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limits.Document)
	}
	return true, nil
}

// readEntry reads a file into the buffer, or into a larger one.
func readEntry(r io.Reader, size int64, buffer []byte) ([]byte, error) {
	if int64(cap(buffer)) < size {
		buffer = make([]byte, size)
	}
	buffer = buffer[:size]
	_, err := io.ReadFull(r, buffer)
	return buffer, err
}
