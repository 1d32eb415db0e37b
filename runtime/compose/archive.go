package compose

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"unicode/utf8"
)

const (
	maxEntries     = 4096      // files, directories and links of a package
	maxEntryName   = 1024      // bytes of a name with its directories, or of a link target
	maxDirectories = 32        // above an entry
	maxEntrySize   = 64 << 20  // bytes of one file
	maxExpanded    = 128 << 20 // bytes of the expanded archive
	maxHops        = 40        // links that one path may lead through, as the kernel has it
)

type entry struct {
	kind    byte   // tar.TypeDir, TypeReg, TypeSymlink or TypeLink
	target  string // of links; of a hard link, the name of its file
	implied bool   // a directory that is only there because something is in it
	content []byte // of a file kept in memory; nil: read it from the archive again
}

// Package is a package that was read completely, found harmless, and extracted.
type Package struct {
	File string // path of its Compose file

	archive []byte            // compressed, or a Compose file itself
	dir     string            // absolute, where it was extracted to
	entries map[string]*entry // by clean name
	spare   int64             // bytes of content that may still be kept
}

// inspect reads a package without writing, and refuses all that is harmful (PKG-07 to PKG-10).
func inspect(archive []byte, strict bool) (*Package, error) {
	p := &Package{archive: archive, entries: map[string]*entry{}, spare: maxKept}
	switch {
	case strict && !IsArchive(archive):
		return nil, invalid("not a gzip-compressed archive")
	case len(archive) == 0:
		return nil, invalid("Compose file has 0 bytes")
	}
	if err := p.walk(p.add); err != nil {
		return nil, err
	}
	top, err := p.findComposeFile(strict)
	if err != nil {
		return nil, err
	}
	for name, e := range p.entries {
		if e.kind == tar.TypeSymlink {
			if _, err := p.follow(name, top); err != nil {
				return nil, err
			}
		}
	}
	p.entries["."] = &entry{kind: tar.TypeDir}
	return p, nil
}

// walk calls each for the entries. Errors of the archive, unlike those of each, make it invalid.
func (p *Package) walk(each func(name string, h *tar.Header, content io.Reader) error) (err error) {
	if !IsArchive(p.archive) {
		h := &tar.Header{Typeflag: tar.TypeReg, Size: int64(len(p.archive))}
		return each(legacyNames[0], h, bytes.NewReader(p.archive))
	}
	z, err := gzip.NewReader(bytes.NewReader(p.archive))
	if err != nil {
		return invalid("cannot read archive: %w", err)
	}
	expanded := &io.LimitedReader{R: z, N: maxExpanded + 1}
	defer func() {
		if expanded.N == 0 {
			err = invalid("cannot read archive: it expands to more than %d bytes", maxExpanded)
		}
	}()
	archive := tar.NewReader(expanded)
	for n := 0; ; n++ {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return invalid("cannot read archive: %w", err)
		}
		if n >= maxEntries {
			return invalid("archive has more than %d entries", maxEntries)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		name, err := p.cleanName(h.Name)
		if err != nil {
			return err
		}
		if name == "." {
			if h.Typeflag != tar.TypeDir {
				return invalid("entry %q is not a directory", h.Name)
			}
			continue
		}
		if err := each(name, h, archive); err != nil {
			return err
		}
	}
	// The checksum of gzip comes after the end of the tar.
	if _, err := io.Copy(io.Discard, expanded); err != nil {
		return invalid("cannot read archive: %w", err)
	}
	return nil
}

// cleanName is the name of an entry without "./" and trailing slash.
func (p *Package) cleanName(name string) (string, error) {
	switch {
	case name == "", strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }):
		return "", invalid("entry name %q is empty or has unprintable characters", name)
	case path.IsAbs(name):
		return "", invalid("entry name %q is absolute", name)
	case len(name) > maxEntryName:
		return "", invalid("an entry name has %d bytes; the limit is %d", len(name), maxEntryName)
	}
	for component := range strings.SplitSeq(name, "/") {
		if component == ".." {
			return "", invalid("entry name %q contains ..", name)
		}
		if len(component) > 255 {
			return "", invalid("an entry name has a component of %d bytes; the limit is 255", len(component))
		}
	}
	name = path.Clean(name)
	if strings.Count(name, "/") > maxDirectories {
		return "", invalid("entry %q is nested more than %d directories deep", name, maxDirectories)
	}
	return name, nil
}

// add checks one entry, as far as that is possible without later ones.
func (p *Package) add(name string, h *tar.Header, content io.Reader) error {
	if err := p.addParents(name); err != nil {
		return err
	}
	e := &entry{kind: h.Typeflag, target: h.Linkname}
	switch h.Typeflag {
	case tar.TypeDir:
	case tar.TypeReg:
		if h.Size > maxEntrySize {
			return invalid("file %q has %d bytes; the limit is %d", name, h.Size, maxEntrySize)
		}
		if h.Size <= min(maxKeptFile, p.spare) {
			p.spare -= h.Size
			var err error
			if e.content, err = io.ReadAll(content); err != nil {
				return invalid("cannot read file %q: %w", name, err)
			}
		}
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxEntryName || strings.ContainsRune(h.Linkname, 0) {
			return invalid("link %q has a target that is empty, too long or malformed", name)
		}
	case tar.TypeLink:
		target, err := p.cleanName(h.Linkname)
		if err != nil {
			return fmt.Errorf("link %q: %w", name, err)
		}
		// Files come before their links in every tar. That also excludes links to links of
		// the other sort and to directories.
		to := p.entries[target]
		if to == nil || to.kind != tar.TypeReg && to.kind != tar.TypeLink {
			return invalid("link %q leads to %q, which is not an earlier file of the archive", name, target)
		}
		if e.target = target; to.kind == tar.TypeLink {
			e.target = to.target
		}
	default:
		return invalid("entry %q is not a file, a directory or a link (type %q)", name, h.Typeflag)
	}
	if before := p.entries[name]; before != nil && !(before.implied && e.kind == tar.TypeDir) {
		return invalid("duplicate entry %q", name)
	}
	p.entries[name] = e
	return nil
}

func (p *Package) addParents(name string) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		parent := p.entries[dir]
		if parent == nil {
			if len(p.entries) >= maxEntries {
				return invalid("archive has more than %d entries", maxEntries)
			}
			p.entries[dir] = &entry{kind: tar.TypeDir, implied: true}
			continue
		}
		if parent.kind != tar.TypeDir {
			return invalid("entry %q lies under %q, which is not a directory", name, dir)
		}
		return nil // its parents were seen to before
	}
	return nil
}

// findComposeFile applies the layout rules and returns the directory that no link may leave.
func (p *Package) findComposeFile(strict bool) (top string, err error) {
	var inRoot []string
	for name := range p.entries {
		if !strings.Contains(name, "/") {
			inRoot = append(inRoot, name)
		}
	}
	places, names, top := []string{"."}, legacyNames, "."
	switch single := len(inRoot) == 1 && p.entries[inRoot[0]].kind == tar.TypeDir; {
	case strict && !single:
		return "", invalid("archive must have exactly one top-level directory and nothing beside it, but has %d entries there", len(inRoot))
	case strict:
		places, names, top = inRoot, legacyNames[:1], inRoot[0]
	case single:
		places = append(places, inRoot[0])
	}
	for _, place := range places {
		for _, name := range names {
			p.File = path.Join(place, name)
			if e := p.entries[p.File]; e != nil && e.kind == tar.TypeReg {
				return top, nil
			}
		}
	}
	if strict {
		return "", invalid("archive has no file %q", p.File)
	}
	return "", invalid("archive has no Compose file (%s) in its root or its only directory", strings.Join(legacyNames, ", "))
}

// follow resolves the links in a name. It refuses one that ever leaves top (PKG-08). A dangling
// link is accepted: it cannot leave later, since nothing else is ever written here.
func (p *Package) follow(name, top string) (at string, err error) {
	at = "."
	rest := strings.Split(name, "/")
	for hops := 0; len(rest) > 0; {
		component := rest[0]
		rest = rest[1:]
		switch component {
		case "", ".":
			continue
		case "..":
			if at == top || at == "." {
				return "", invalid("link %q leads out of the archive", name)
			}
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, component)
		e := p.entries[next]
		if e == nil || e.kind != tar.TypeSymlink {
			at = next
			continue
		}
		if hops++; hops > maxHops {
			return "", invalid("link %q leads through more than %d links", name, maxHops)
		}
		if path.IsAbs(e.target) {
			return "", invalid("link %q leads to the absolute path %q", name, e.target)
		}
		rest = append(strings.Split(e.target, "/"), rest...)
	}
	return at, nil
}
