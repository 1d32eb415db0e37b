package control

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"time"
)

// maxSeconds bounds how long containers may take to stop: an hour.
const maxSeconds = 3600

var errNoProject = fmt.Errorf("%w: project is missing", ErrInvalid)

// ComposeRequest runs a project without a WFM. Paths are absolute, on the device.
type ComposeRequest struct {
	Project     string            `json:"project"`
	File        string            `json:"file,omitempty"`
	Files       []string          `json:"files,omitempty"`     // after File, merged in this order
	Directory   string            `json:"directory,omitempty"` // where relative paths start; default: that of the first file
	Contents    map[string][]byte `json:"contents,omitempty"`  // by path, of files that only the caller can read
	Environment map[string]string `json:"environment,omitempty"`
	Profiles    []string          `json:"profiles,omitempty"`
	Scale       map[string]int    `json:"scale,omitempty"`    // replicas, by service
	Services    []string          `json:"services,omitempty"` // only these and what they depend on
	Pull        string            `json:"pull,omitempty"`     // always, missing or never; default: as the file has it
	Recreate    bool              `json:"recreate,omitempty"` // also containers that have not changed
	Timeout     *int              `json:"timeout,omitempty"`  // seconds for a container to stop; default: as the file has it
}

func (r *ComposeRequest) check() error {
	if r.Project == "" {
		return errNoProject
	}
	if err := checkSeconds(r.Timeout); err != nil {
		return err
	}
	for _, path := range append(r.AllFiles(), r.Directory) {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%w: %.200q is not an absolute path", ErrInvalid, path)
		}
	}
	switch r.Pull {
	case "", "always", "missing", "never":
	default:
		return fmt.Errorf("%w: pull must be always, missing or never, not %.40q", ErrInvalid, r.Pull)
	}
	for service, n := range r.Scale {
		if n < 0 {
			return fmt.Errorf("%w: %s cannot have %d replicas", ErrInvalid, service, n)
		}
	}
	return nil
}

func projectOf(r *http.Request) (string, error) { return r.URL.Query().Get("project"), nil }

// AllFiles returns File and Files.
func (r *ComposeRequest) AllFiles() []string {
	if r.File == "" {
		return slices.Clone(r.Files)
	}
	return slices.Concat([]string{r.File}, r.Files)
}

// DownRequest removes a Compose project.
type DownRequest struct {
	Project string `json:"project"`
	Volumes bool   `json:"volumes,omitempty"` // also its volumes and their data
	Timeout *int   `json:"timeout,omitempty"` // seconds for a container to stop; default: as the file had it
}

func (r *DownRequest) check() error {
	if r.Project == "" {
		return errNoProject
	}
	return checkSeconds(r.Timeout)
}

// Duration converts a Timeout; nil if there is none.
func Duration(seconds *int) *time.Duration {
	if seconds == nil {
		return nil
	}
	d := time.Duration(*seconds) * time.Second
	return &d
}

func checkSeconds(timeout *int) error {
	if timeout != nil && (*timeout < 0 || *timeout > maxSeconds) {
		return fmt.Errorf("%w: timeout must be 0 to %d seconds, not %d", ErrInvalid, maxSeconds, *timeout)
	}
	return nil
}

// Unneeded is something on the device that nothing needs now.
type Unneeded struct {
	Kind    UnneededKind `json:"kind"`
	Project string       `json:"project,omitempty"` // of a volume
	Name    string       `json:"name"`
	Bytes   int64        `json:"bytes,omitempty"` // on the device; shared layers count for each image
	// Error is why measuring it stopped early; Bytes is the count up to then.
	Error string `json:"error,omitempty"`
	// Later, in the answer to a prune: it is removed once the present downloads end.
	Later bool `json:"later,omitempty"`
}

// UnneededKind is the kind of an Unneeded.
type UnneededKind string

// The kinds of what may be unneeded.
const (
	UnneededVolume UnneededKind = "volume"
	UnneededImage  UnneededKind = "image"
)
