package policy

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// MountAccess is how a path of the device, and what is below it, may be mounted.
type MountAccess string

// The accesses.
const (
	MountNever    MountAccess = "never"
	MountReadOnly MountAccess = "read-only"
	MountBelow    MountAccess = "below" // what is below it, but not the whole of it
	MountAlways   MountAccess = "always"
)

// CheckMount says what is wrong with an entry of Allow.Mounts.
func CheckMount(at string) error {
	switch {
	case !path.IsAbs(at) || path.Clean(at) != at || len(at) > 4096 || strings.ContainsRune(at, 0):
		return errors.New("expected an absolute path, without //, .. or a trailing /")
	case place(at) != at:
		return fmt.Errorf("write it as %s", place(at))
	}
	return nil
}

// CheckAccess says what is wrong with how a path may be mounted.
func CheckAccess(a string) error {
	return oneOf(a, string(MountNever), string(MountReadOnly), string(MountBelow), string(MountAlways))
}

// place is where a path leads, by a link that every system has or could have.
func place(p string) string {
	p = path.Clean(p)
	if rest, ok := strings.CutPrefix(p, "/var/run"); ok && (rest == "" || rest[0] == '/') {
		return "/run" + rest
	}
	return p
}

// within says whether p is dir or below it.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// mount says whether a path may be mounted, by the entries from top down, and of
// one that may not what a person needs to know beside it. Own are paths that nobody
// may mount.
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
