package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/content"
)

// dropChecks removes leftovers of killed file system checks from the content store in dir.
func dropChecks(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, ".fsverity-check-*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// dropTorn removes downloads that cannot continue: a failing medium or a power cut left the reference
// without data, or not even that. containerd neither lists nor collects them, and refuses to list any
// while one has no times. No download may be running. dir is that of the content store.
func dropTorn(ctx context.Context, blobs content.Store, dir string) error {
	dir = filepath.Join(dir, "ingest")
	ingests, err := readDir(dir)
	if err != nil {
		return fmt.Errorf("cannot list unfinished content: %w", err)
	}
	var all error
	for _, ingest := range ingests {
		path := filepath.Join(dir, ingest.Name())
		ref, err := os.ReadFile(filepath.Join(path, "ref"))
		if err == nil {
			// The directory's name is the digest of the reference: with a torn one, nothing is found.
			_, err = blobs.Status(ctx, string(ref))
		}
		if err != nil {
			all = errors.Join(all, os.RemoveAll(path))
		}
	}
	return all
}

// readDir returns nothing for a missing directory.
func readDir(path string) ([]os.DirEntry, error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return entries, err
}
