// Package build knows what was built: the version stamp that the linker sets,
// and the flavour that the build tags chose. Beside it stand the budgets that a
// build has to keep, as tests.
package build

// version and commit are set by the linker:
// -ldflags "-X github.com/margolite/margolite/build.version=..."
var (
	version = "dev"
	commit  = ""
)

// Version is the version of this program.
func Version() string { return version }

// Commit is the commit that it was built from, or "".
func Commit() string { return commit }
