// Package build knows what was built: the version stamp that the linker sets,
// and the flavour that the build tags chose. Beside it stand the budgets that a
// build has to keep, as tests.
package build

import (
	"strconv"
	gotime "time"
)

// version, commit and time are set by the linker:
// -ldflags "-X github.com/margolite/margolite/build.version=..."
var (
	version = "dev"
	commit  = ""
	time    = "" // of the commit, in Unix seconds
)

// earliest is before every build of this program that exists.
const earliest = 1767225600 // 2026-01-01

// Version is the version of this program.
func Version() string { return version }

// Commit is the commit that it was built from, or "".
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
