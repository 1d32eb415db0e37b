package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	gomodule "golang.org/x/mod/module"
)

// own is the module of the agent.
const own = "github.com/margolite/margolite"

// release is what is described.
type release struct {
	name, version string
	created       time.Time
	programs      []program
	modules       []module // of all programs, sorted
}

// program is one file.
type program struct {
	name   string // of the file
	sha256 string
	golang string // the version that it was built with, as 1.26.6
	target string // as linux/arm/7
	tags   string
	linked []debug.Module
}

// module is a version of somebody's source code.
type module struct {
	path, version string
	sum           string // of go.sum, as h1:...; empty: none is known
	licenses      []license
	users         []string // names of the programs that it is linked into
}

// readProgram reads what the linker wrote into a file.
func readProgram(path string) (program, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return program{}, err
	}
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return program{}, fmt.Errorf("cannot read what %s is made of: %w", path, err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	sum := sha256.Sum256(content)
	p := program{
		name: filepath.Base(path), sha256: hex.EncodeToString(sum[:]),
		golang: strings.TrimPrefix(strings.Fields(info.GoVersion)[0], "go"), tags: settings["-tags"],
		target: settings["GOOS"] + "/" + settings["GOARCH"],
	}
	if arm := settings["GOARM"]; arm != "" {
		p.target += "/" + arm
	}
	for _, d := range info.Deps {
		p.linked = append(p.linked, *d)
	}
	return p, nil
}

// readModules puts together what the programs are linked from, the standard
// library and its license included.
func (r *release) readModules() error {
	golang, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("cannot find the sources: %w", err)
	}
	cache, root, _ := strings.Cut(strings.TrimSpace(string(golang)), "\n")
	found := map[string]*module{}
	note := func(m module, dir, user string) error {
		key := m.path + "@" + m.version
		if found[key] == nil {
			if m.licenses, err = readLicenses(dir); err != nil {
				return fmt.Errorf("cannot tell the license of %s: %w", key, err)
			}
			found[key] = &m
		}
		found[key].users = append(found[key].users, user)
		return nil
	}
	for _, p := range r.programs {
		if err := note(module{path: "stdlib", version: p.golang}, root, p.name); err != nil {
			return err
		}
		for _, d := range p.linked {
			path, err := gomodule.EscapePath(d.Path)
			version, err2 := gomodule.EscapeVersion(d.Version)
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			dir := filepath.Join(cache, path+"@"+version)
			if err := note(module{path: d.Path, version: d.Version, sum: d.Sum}, dir, p.name); err != nil {
				return err
			}
		}
	}
	for _, m := range slices.Collect(maps.Values(found)) {
		r.modules = append(r.modules, *m)
	}
	slices.SortFunc(r.modules, func(a, b module) int { return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.version, b.version)) })
	return nil
}
