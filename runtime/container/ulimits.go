package container

import (
	"fmt"
	"math"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
)

// ulimits by the names of Compose.
var ulimits = map[string]string{
	"as": "RLIMIT_AS", "core": "RLIMIT_CORE", "cpu": "RLIMIT_CPU", "data": "RLIMIT_DATA", "fsize": "RLIMIT_FSIZE",
	"locks": "RLIMIT_LOCKS", "memlock": "RLIMIT_MEMLOCK", "msgqueue": "RLIMIT_MSGQUEUE", "nice": "RLIMIT_NICE",
	"nofile": openFilesLimit, "nproc": "RLIMIT_NPROC", "rss": "RLIMIT_RSS", "rtprio": "RLIMIT_RTPRIO", "rttime": "RLIMIT_RTTIME",
	"sigpending": "RLIMIT_SIGPENDING", "stack": "RLIMIT_STACK",
}

const openFilesLimit = "RLIMIT_NOFILE"

// rlimits are the limits of the process: that of open files, which everybody
// gets, and those of the service.
func rlimits(s *compose.Service, h Host) ([]specs.POSIXRlimit, error) {
	files := min(uint64(openFiles), h.OpenFiles)
	limits := []specs.POSIXRlimit{{Type: openFilesLimit, Soft: min(softFiles, files), Hard: files}}
	for _, u := range s.Ulimits {
		kind, known := ulimits[u.Name]
		if !known {
			return nil, fmt.Errorf("ulimits: %.40q is no limit", u.Name)
		}
		limit := specs.POSIXRlimit{Type: kind, Soft: rlimit(u.Soft), Hard: rlimit(u.Hard)}
		if limit.Soft > limit.Hard {
			return nil, fmt.Errorf("ulimits: %s has a soft limit of %d above its hard limit of %d", u.Name, u.Soft, u.Hard)
		}
		if kind == openFilesLimit && h.MostOpenFiles > 0 && limit.Hard > h.MostOpenFiles {
			return nil, fmt.Errorf("ulimits: nofile is %d, the kernel lets no process open more than %d (fs.nr_open)", u.Hard, h.MostOpenFiles)
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
