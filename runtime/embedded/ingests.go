package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/content"
)

// dropChecks removes what a start that was killed leaves of the content store's look at its file system. dir is that of the
// content store.
func dropChecks(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, ".fsverity-check-*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// dropTorn removes what is left of downloads that nobody can go on with: a medium that failed, or lost its power, leaves
// of one what it is called and no data, or not even what it is called. containerd neither lists nor collects them, and
// refuses to list any while one has no times. Nobody may be downloading yet. dir is that of the content store.
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
			// A directory has the digest of its reference as its name: where that is torn, nothing is found.
			_, err = blobs.Status(ctx, string(ref))
		}
		if err != nil {
			all = errors.Join(all, os.RemoveAll(path))
		}
	}
	return all
}

// readDir lists nothing where there is no such directory yet.
func readDir(path string) ([]os.DirEntry, error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return entries, err
}
