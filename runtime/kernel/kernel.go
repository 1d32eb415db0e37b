// Package kernel knows the kernel options that workloads need.
//
// There is one list, margolite.cfg in this directory, in the form that kernel builds take; the
// fragments in packaging are the same bytes. A configuration is only a hint of what works:
// runtime/embedded and runtime/network try what they need.
package kernel

import (
	"bufio"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Fragment is the list of options in the form that kernel builds take.
//
//go:embed margolite.cfg
var Fragment string

// maxConfig limits a kernel's configuration, in bytes; those of distributions have 300 KB.
const maxConfig = 4 << 20

// Option is a kernel option.
type Option struct {
	Name  string // with CONFIG_
	For   string // its purpose
	Extra bool   // needed by some workloads only
}

// Options returns all options of the fragment in its order.
func Options() []Option {
	var options []Option
	var paragraph Option
	begins := true
	for line := range strings.Lines(Fragment) {
		line = strings.TrimSpace(line)
		text, comment := strings.CutPrefix(line, "# ")
		switch {
		case line == "":
			begins = true
		case comment && begins:
			text, paragraph.Extra = strings.CutPrefix(text, "extra: ")
			paragraph.For, begins = text, false
		case !comment:
			o := paragraph
			o.Name, _, _ = strings.Cut(line, "=")
			options = append(options, o)
		}
	}
	return options
}

// Missing returns the needed options, not the extra ones, that the configuration of the running
// kernel, under root, lacks; and the file that it read. The error wraps fs.ErrNotExist if
// there is no such file.
func Missing(root string) (file string, missing []Option, err error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", nil, fmt.Errorf("cannot ask the kernel for its version: %w", err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	for _, file := range []string{"/proc/config.gz", "/boot/config-" + release, "/lib/modules/" + release + "/config"} {
		f, err := os.Open(filepath.Join(root, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", nil, fmt.Errorf("cannot read the configuration of the kernel: %w", err)
		}
		defer f.Close()
		set, err := read(f, strings.HasSuffix(file, ".gz"))
		if err != nil {
			return "", nil, fmt.Errorf("cannot read the configuration of the kernel in %s: %w", file, err)
		}
		for _, o := range Options() {
			if !o.Extra && !set[o.Name] {
				missing = append(missing, o)
			}
		}
		return file, missing, nil
	}
	return "", nil, fmt.Errorf("the kernel does not reveal its configuration: %w", fs.ErrNotExist)
}

// read returns the options that are y or m.
func read(r io.Reader, compressed bool) (map[string]bool, error) {
	if compressed {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, err
		}
		r = z
	}
	limited := &io.LimitedReader{R: r, N: maxConfig}
	set := make(map[string]bool)
	lines := bufio.NewScanner(limited)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), "=")
		if strings.HasPrefix(name, "CONFIG_") && (value == "y" || value == "m") {
			set[name] = true
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if limited.N == 0 {
		return nil, fmt.Errorf("it has more than %d bytes", maxConfig)
	}
	return set, nil
}
