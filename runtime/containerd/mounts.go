package containerd

import (
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
)

// WrittenDirs returns the directories that writes to mounts go to; none for read-only mounts.
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

// OverlayDirs: upper takes writes, or is ""; lower are below it, the topmost first.
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
