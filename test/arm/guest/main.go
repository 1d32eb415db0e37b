// Guest is in a machine that a test has booted, and does there what the test asks for.
//
//	guest serve :PORT   runs commands: POST /run with a Command gives its Result
//	guest traces        what package leftovers sees of margolite, as JSON
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/test/leftovers"
)

// Command is to be run.
type Command struct {
	Args  []string `json:"args"`
	Input string   `json:"input,omitempty"`
}

// Result is what came of it.
type Result struct {
	Code   int    `json:"code"`
	Output string `json:"output"`
	Errors string `json:"errors"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		return serve(args[1])
	case len(args) == 1 && args[0] == "traces":
		return json.NewEncoder(os.Stdout).Encode(leftovers.Take(looker{}, leftovers.Where{
			Namespace: "margo", StateDir: "/var/lib/margolite", RunDir: "/run/margolite",
		}))
	}
	return errors.New("usage: guest serve ADDRESS | traces")
}

func serve(address string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /run", func(w http.ResponseWriter, r *http.Request) {
		var c Command
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil || len(c.Args) == 0 {
			http.Error(w, fmt.Sprintf("no command: %v", err), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(c.run(r))
	})
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: time.Minute}
	return server.ListenAndServe()
}

func (c Command) run(r *http.Request) Result {
	cmd := exec.CommandContext(r.Context(), c.Args[0], c.Args[1:]...)
	cmd.Stdin = strings.NewReader(c.Input)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	result := Result{}
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(&errs, "%s: %v\n", c.Args[0], err)
		result.Code = max(1, cmd.ProcessState.ExitCode())
	}
	result.Output, result.Errors = out.String(), errs.String()
	return result
}

// looker is as much of a test as package leftovers asks for.
type looker struct{ testing.TB }

func (looker) Helper() {}

func (looker) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "guest: "+format+"\n", args...)
	os.Exit(1)
}
