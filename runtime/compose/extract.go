package compose

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/margolite/margolite/runtime/tree"
)

// legacyNames are the names of the Compose file in a legacy package, in this order.
var legacyNames = []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"}

// IsArchive tells a gzip-compressed archive from a plain Compose file.
func IsArchive(b []byte) bool { return len(b) >= 2 && b[0] == 0x1f && b[1] == 0x8b }

// Extract checks a package and extracts it into dir, which then is complete and durable, or
// does not exist. It returns the path of the Compose file.
//
// With strict the package is a Compose component of the OCI form: a gzip-compressed tar with
// exactly one top-level directory and a compose.yaml in it (PKG-05, PKG-06). Without, it is a
// legacy package: a Compose file, or an archive with a Compose file of any usual name in its
// root or its only directory.
//
// An existing dir is kept as it is; the caller names it after the content. Containers that
// mount its directories keep their changes to them: Load, given the package, reads nothing
// there. Calls for the same dir must not overlap.
func Extract(archive []byte, dir string, strict bool) (*Package, error) {
	p, err := inspect(archive, strict)
	if err == nil {
		p.dir, err = filepath.Abs(dir)
	}
	if err == nil {
		err = p.extract()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot extract Compose package: %w", err)
	}
	p.File = filepath.Join(p.dir, filepath.FromSlash(p.File))
	return p, nil
}

// extract renames a complete directory to dir, so that no power cut leaves half a package there.
func (p *Package) extract() (err error) {
	if info, err := os.Lstat(p.dir); err == nil && info.IsDir() {
		return nil // it got its name when all of it was there
	}
	partial := p.dir + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.RemoveAll(p.dir)); err != nil {
		return err
	}
	parent := filepath.Dir(p.dir)
	// A package may have secrets. Containers get what they mount of it, whatever their user.
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(partial, 0o755); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(partial))
		}
	}()

	root, err := os.OpenRoot(partial)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := p.write(root); err != nil {
		return err
	}
	if err := os.Rename(partial, p.dir); err != nil {
		return err
	}
	return tree.Sync(parent)
}

// write creates what inspect has approved, and nothing below a link.
func (p *Package) write(root *os.Root) error {
	err := p.walk(func(name string, h *tar.Header, content io.Reader) error {
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		switch e := p.entries[name]; e.kind {
		case tar.TypeDir:
			return root.MkdirAll(name, 0o755)
		case tar.TypeLink:
			return root.Link(e.target, name)
		case tar.TypeSymlink:
			return root.Symlink(e.target, name)
		}
		return writeFile(root, name, h.Mode&0o111 != 0, content)
	})
	if err != nil {
		return err
	}
	for name, e := range p.entries {
		if e.kind != tar.TypeDir {
			continue
		}
		// Whatever the umask: containers with another user read these through bind mounts.
		if err := root.Chmod(name, 0o755); err != nil {
			return err
		}
		// No link is followed: these directories were made here.
		if err := tree.Sync(filepath.Join(root.Name(), name)); err != nil {
			return err
		}
	}
	return nil
}

// writeFile creates a file. Only the executable bit of its archived mode is kept (PKG-09).
func writeFile(root *os.Root, name string, program bool, content io.Reader) error {
	mode := fs.FileMode(0o644)
	if program {
		mode = 0o755
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}
