// Package build holds the version stamp that the linker sets. The tests beside it
// check the rules that every build must keep.
package build

import (
	"cmp"
	"runtime/debug"
	"strconv"
	gotime "time"
)

// version, commit and time are set by the linker:
// -ldflags "-X github.com/margolite/margolite/build.version=..."
var (
	version = ""
	commit  = ""
	time    = "" // of the commit, in Unix seconds
)

// earliest is before every build of this program that exists.
const earliest = 1767225600 // 2026-01-01

// Version is the version of this program: the stamp, else that of the module.
func Version() string { return cmp.Or(version, Module(), "dev") }

// Module is the version of the module that this program was built from, or "" if
// it was built in a work tree.
func Module() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Sum == "" {
		return ""
	}
	return info.Main.Version
}

// Commit is the commit that it was built from, or "" without a stamp.
func Commit() string { return commit }

// Time is the time of that commit, which the present cannot be before. Not the
// time of the build: building the same commit again gives the same bytes.
func Time() gotime.Time {
	seconds, err := strconv.ParseInt(time, 10, 64)
	if err != nil {
		seconds = 0
	}
	return gotime.Unix(max(seconds, earliest), 0).UTC()
}
