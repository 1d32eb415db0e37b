// Manual writes the manual page of margolite and the completions of bash, zsh and
// fish from what the program says of itself:
//
//	go run ./packaging/manual bin/margolite DIR
//
// The program has to run here. The rest of the page is in margolite.8.
package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/margolite/margolite/cmd/command"
)

//go:embed margolite.8
var page string

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: manual MARGOLITE DIR")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

func run(program, dir string) error {
	described, err := exec.Command(program, "describe-commands").Output()
	var commands []command.Description
	if err == nil {
		err = json.Unmarshal(described, &commands)
	}
	if err != nil {
		return fmt.Errorf("cannot ask %s for its commands: %w", program, err)
	}
	for name, text := range map[string]string{
		"margolite.8":    manual(page, commands),
		"margolite.bash": bash(commands),
		"_margolite":     zsh(commands),
		"margolite.fish": fish(commands),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
