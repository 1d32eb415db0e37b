package debimage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Cache holds packages, and the layers that were made of them.
type Cache struct{ dir string }

// Open opens the cache of this user.
func Open() (*Cache, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir() // no home: as good for a test
	}
	c := &Cache{filepath.Join(dir, "margolite-test")}
	for _, sub := range []string{"debs", "layers"} {
		if err := os.MkdirAll(filepath.Join(c.dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("cannot make a cache of packages: %w", err)
		}
	}
	return c, nil
}

// ErrNotFetched says that a layer was asked for whose packages were not fetched.
var ErrNotFetched = errors.New("its packages were not fetched; that needs apt and a network")

// Layer is the archive of packages that were fetched. The same packages give
// the same layer.
func (c *Cache) Layer(packages []string) ([]byte, error) {
	layer, err := os.ReadFile(c.layer(packages))
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrNotFetched
	}
	if err != nil {
		return nil, fmt.Errorf("cannot get layer of %s: %w", strings.Join(packages, ", "), err)
	}
	return layer, nil
}

// Fetch makes the layers of sets of packages, where they are not there yet.
func (c *Cache) Fetch(ctx context.Context, sets ...[]string) error {
	for _, packages := range sets {
		if len(packages) == 0 {
			continue
		}
		if _, err := os.Stat(c.layer(packages)); err == nil {
			continue
		}
		err := c.fetch(ctx, packages)
		if err != nil {
			// What apt knows may be too old, or nothing.
			_, err = apt(ctx, "", "update", "-qq")
			err = errors.Join(err, c.fetch(ctx, packages))
		}
		if err != nil {
			return fmt.Errorf("cannot fetch %s: %w", strings.Join(packages, ", "), err)
		}
	}
	return nil
}

func (c *Cache) fetch(ctx context.Context, packages []string) error {
	list, err := closure(ctx, packages)
	if err != nil {
		return err
	}
	files, err := download(ctx, filepath.Join(c.dir, "debs"), list)
	if err != nil {
		return err
	}
	// Under another name until it is whole: somebody else may look for it.
	file, err := os.CreateTemp(filepath.Join(c.dir, "layers"), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	if err := errors.Join(file.Close(), unpack(ctx, file.Name(), files)); err != nil {
		return err
	}
	return os.Rename(file.Name(), c.layer(packages))
}

// layer is the file of a layer. What [dropped] says is part of what it is.
func (c *Cache) layer(packages []string) string {
	key := strings.Join(slices.Concat([]string{runtime.GOARCH}, packages, dropped), " ")
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(c.dir, "layers", packages[0]+"-"+hex.EncodeToString(sum[:6])+".tar")
}
