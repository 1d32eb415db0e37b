package control

import (
	"fmt"
	"io"
	"strings"
)

const maxExecArgs = 1024

// ExecRequest runs a command in a running container of a deployment or a Compose project.
type ExecRequest struct {
	Deployment string   `json:"deployment,omitempty"` // a deployment's id, a unique prefix of it, or its name; or
	Project    string   `json:"project,omitempty"`    // a Compose project
	Service    string   `json:"service"`
	Number     int      `json:"number,omitempty"` // of the replica; 0: the first
	Args       []string `json:"args"`
	Env        []string `json:"env,omitempty"`  // NAME=VALUE, overriding the container's
	User       string   `json:"user,omitempty"` // user[:group]; empty: the container's
	WorkingDir string   `json:"workingDir,omitempty"`
	Privileged bool     `json:"privileged,omitempty"`
	TTY        bool     `json:"tty,omitempty"`
	Detach     bool     `json:"detach,omitempty"` // do not wait for its end, attach no streams
}

func (r *ExecRequest) check() error {
	switch {
	case r.Service == "" || (r.Deployment == "") == (r.Project == ""):
		return fmt.Errorf("%w: name a service and one deployment or project", ErrInvalid)
	case len(r.Args) == 0 || r.Args[0] == "":
		return fmt.Errorf("%w: command is missing", ErrInvalid)
	case len(r.Args)+len(r.Env) > maxExecArgs:
		return fmt.Errorf("%w: more than %d arguments and variables", ErrInvalid, maxExecArgs)
	case r.Number < 0:
		return fmt.Errorf("%w: invalid replica number %d", ErrInvalid, r.Number)
	}
	for _, v := range r.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			return fmt.Errorf("%w: variable %.40q is not NAME=VALUE", ErrInvalid, v)
		}
	}
	for _, text := range append(append([]string{r.User, r.WorkingDir}, r.Args...), r.Env...) {
		if strings.ContainsRune(text, 0) {
			return fmt.Errorf("%w: a text contains a NUL character", ErrInvalid)
		}
	}
	return nil
}

// ExecStreams are the streams of a command; nil: none. With a terminal all output is on Stdout.
type ExecStreams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan Size // sizes of the terminal as they change
}

// Size is the size of a terminal in characters, as in package runtime/container.
type Size = struct{ Columns, Rows uint16 }
