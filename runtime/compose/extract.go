package compose

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/margolite/margolite/runtime/tree"
)

// legacyNames is where the Compose file of a legacy package is looked for, in
// this order.
var legacyNames = []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"}

// IsArchive tells a gzip-compressed archive from a plain Compose file.
func IsArchive(b []byte) bool { return len(b) >= 2 && b[0] == 0x1f && b[1] == 0x8b }

// Extract checks a package and puts its content into dir, which then holds all of
// it, on the medium, or does not exist. It returns the path of the Compose file.
//
// With strict the package is a Compose component of the OCI form: a gzip-compressed
// tar with exactly one top-level directory and a compose.yaml in it (PKG-05,
// PKG-06). Without, it is a legacy package: a Compose file itself, or an archive
// with a Compose file of any usual name in its root or its only directory.
//
// A dir that exists is kept as it is; the caller names it after the content.
// Containers that mount directories of a package change what is in them, and find
// it again: Load, given the package, takes nothing from there.
// One caller at a time may extract into the same dir.
func Extract(archive []byte, dir string, strict bool) (*Package, error) {
	p, err := inspect(archive, strict)
	if err != nil {
		return nil, fmt.Errorf("cannot extract Compose package: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("cannot extract Compose package: %w", err)
	}
	p.File, p.dir = filepath.Join(dir, filepath.FromSlash(p.composeFile)), dir
	if info, err := os.Lstat(dir); err == nil && info.IsDir() {
		return p, nil // it got its name when all of it was there
	}
	if err := p.writeTo(dir); err != nil {
		return nil, fmt.Errorf("cannot extract Compose package: %w", err)
	}
	return p, nil
}

// writeTo extracts into a fresh directory beside dir and renames it, so that no
// power cut leaves half of a package where a whole one is expected.
func (p *Package) writeTo(dir string) (err error) {
	partial := dir + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.RemoveAll(dir)); err != nil {
		return err
	}
	parent := filepath.Dir(dir)
	// A package may have secrets. Containers get what they mount of it, whoever they are.
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
	if err := os.Rename(partial, dir); err != nil {
		return err
	}
	return tree.Sync(parent)
}

// write creates what inspect has approved of. The links come last, so that
// nothing is ever written through one.
func (p *Package) write(root *os.Root) error {
	for _, dir := range p.names(directory) {
		if err := root.Mkdir(dir, 0o755); err != nil {
			return err
		}
		// Whatever the umask of the agent: containers with a user of their
		// own read these directories through bind mounts.
		if err := root.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	if err := p.writeFiles(root); err != nil {
		return err
	}
	for _, name := range p.names(hardLink) {
		if err := root.Link(p.entries[name].target, name); err != nil {
			return err
		}
	}
	for _, name := range p.names(symlink) {
		if err := root.Symlink(p.entries[name].target, name); err != nil {
			return err
		}
	}
	for _, dir := range append(p.names(directory), ".") {
		// No link is followed: these directories were made here.
		if err := tree.Sync(filepath.Join(root.Name(), dir)); err != nil {
			return err
		}
	}
	return nil
}

func (p *Package) writeFiles(root *os.Root) error {
	return p.walk(func(name string, h *tar.Header, content io.Reader) error {
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		return writeFile(root, name, h.Mode&0o111 != 0, func(w io.Writer) error {
			_, err := io.Copy(w, content)
			return err
		})
	})
}

// writeFile creates a file with one of two modes: of what an archive says, only
// whether a file is a program is kept (PKG-09).
func writeFile(root *os.Root, name string, program bool, content func(io.Writer) error) error {
	mode := fs.FileMode(0o644)
	if program {
		mode = 0o755
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	err = errors.Join(content(f), f.Chmod(mode), f.Sync())
	return errors.Join(err, f.Close())
}

// names are the entries of one kind, parents before their children.
func (p *Package) names(k kind) []string {
	var names []string
	for name, e := range p.entries {
		if e.kind == k {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
