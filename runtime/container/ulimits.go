package container

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
)

const openFilesLimit = "RLIMIT_NOFILE"

// rlimits are the limits of the process: that of open files, which everybody
// gets, and those of the service.
func rlimits(s *compose.Service, h Host) ([]specs.POSIXRlimit, error) {
	files := min(uint64(openFiles), h.OpenFiles)
	limits := []specs.POSIXRlimit{{Type: openFilesLimit, Soft: min(softFiles, files), Hard: files}}
	for _, u := range s.Ulimits {
		kind := "RLIMIT_" + strings.ToUpper(u.Name)
		limit := specs.POSIXRlimit{Type: kind, Soft: rlimit(u.Soft), Hard: rlimit(u.Hard)}
		if kind == openFilesLimit && h.MostOpenFiles > 0 && limit.Hard > h.MostOpenFiles {
			return nil, fmt.Errorf("ulimits: nofile is %d; the kernel allows %d (fs.nr_open)", u.Hard, h.MostOpenFiles)
		}
		limits = slices.DeleteFunc(limits, func(l specs.POSIXRlimit) bool { return l.Type == kind })
		limits = append(limits, limit)
	}
	return limits, nil
}

// rlimit is a limit as the kernel has it, which takes the largest number for none.
func rlimit(n int64) uint64 {
	if n < 0 {
		return math.MaxUint64
	}
	return uint64(n)
}
