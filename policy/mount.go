package policy

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// MountAccess is how a path of the device, and everything below it, may be mounted.
type MountAccess string

// The accesses.
const (
	MountNever    MountAccess = "never"
	MountReadOnly MountAccess = "read-only"
	MountBelow    MountAccess = "below" // paths below it, but not the path itself
	MountAlways   MountAccess = "always"
)

// CheckMount returns what is wrong with an entry of Allow.Mounts.
func CheckMount(at string) error {
	switch {
	case !path.IsAbs(at) || path.Clean(at) != at || len(at) > 4096 || strings.ContainsRune(at, 0):
		return errors.New("expected an absolute path, without //, .. or a trailing /")
	case place(at) != at:
		return fmt.Errorf("write it as %s", place(at))
	}
	return nil
}

// CheckAccess returns what is wrong with the access of a path.
func CheckAccess(a string) error {
	return oneOf(a, string(MountNever), string(MountReadOnly), string(MountBelow), string(MountAlways))
}

// place resolves links that every system has or could have.
func place(p string) string {
	p = path.Clean(p)
	if rest, ok := strings.CutPrefix(p, "/var/run"); ok && (rest == "" || rest[0] == '/') {
		return "/run" + rest
	}
	return p
}

// within reports whether p is dir or below it.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// mount reports whether the entries from top down let a path be mounted, and if not, an explanation
// for people. Paths in own must never be mounted.
func (g *Gate) mount(at, top string, readOnly bool, own []string) (why string, ok bool) {
	rule := at
	for g.o.Allow.Mounts[rule] == "" && rule != top {
		rule = path.Dir(rule)
	}
	switch access := g.o.Allow.Mounts[rule]; {
	case access == MountReadOnly && !readOnly:
		return " writable", false
	case access == MountBelow && rule == at:
		return " as a whole", false
	case access == MountNever && rule != at:
		return ", which is in " + rule, false
	case access == MountNever || access == "":
		return "", false
	case rule == at:
		return "", true // with all that it holds
	}
	for _, inner := range g.closed {
		if within(inner, at) && !(readOnly && g.o.Allow.Mounts[inner] == MountReadOnly) {
			return ", which contains " + inner, false
		}
	}
	for _, o := range own {
		if within(place(o), at) {
			return ", which contains " + o + ", the state of margolite", false
		}
	}
	return "", true
}
