package containerd

import (
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
)

// WrittenDirs are the directories that hold what is written to mounts. What is mounted
// read-only is somebody else's.
func WrittenDirs(mounts []mount.Mount) (dirs []string) {
	for _, m := range mounts {
		switch {
		case slices.Contains(m.Options, "ro"):
		case m.Type == "bind":
			dirs = append(dirs, m.Source)
		case m.Type == "overlay":
			if upper, _ := OverlayDirs(m); upper != "" {
				dirs = append(dirs, upper)
			}
		}
	}
	return dirs
}

// OverlayDirs are the directories of an overlay: upper holds what is written, if it is
// not "", and lower are those below it, the topmost first.
func OverlayDirs(m mount.Mount) (upper string, lower []string) {
	for _, o := range m.Options {
		if dir, ok := strings.CutPrefix(o, "upperdir="); ok {
			upper = dir
		} else if dirs, ok := strings.CutPrefix(o, "lowerdir="); ok {
			lower = strings.Split(dirs, ":")
		}
	}
	return upper, lower
}
