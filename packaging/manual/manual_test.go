package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/expect"
)

// commands are those of a program that has a bit of everything.
var commands = []command.Description{
	{Name: "run", Text: "run it", Flags: []command.Flag{{Name: "config", Value: "FILE", Text: "read the configuration from FILE"}}},
	{Name: "logs", Args: "NAME [SERVICE...]", Text: "show what it's printing", Flags: []command.Flag{
		{Name: "tail", Letter: "n", Value: "N", Text: "only the last N lines: all [of them]"},
		{Name: "long-flag-name", Value: "VALUE", Text: "VALUE of it"},
		{Name: "since", Value: "TIME", Text: "since TIME"},
		{Name: "follow", Letter: "f", Text: "go on"},
	}},
	{Name: "compose", Args: "up|down", Text: "do more", Flags: []command.Flag{{Name: "file", Letter: "f", Value: "FILE", Text: "the FILE"}}},
	{Name: "compose up", Args: "[SERVICE...]", Text: "go up", Flags: []command.Flag{{Name: "wait", Text: "wait"}}},
}

func TestThePageHasEveryCommandAndFlag(t *testing.T) {
	got := manual(page, commands)
	for _, want := range []string{
		".B margolite logs NAME [SERVICE...]\n", `\fB\-n, \-\-tail N\fR: only the last N lines`, ".B margolite compose up [SERVICE...]\n", ".SH FILES\n",
	} {
		expect.True(t, strings.Contains(got, want), "the page has no %q:\n%s", want, got)
	}
}

// The shells themselves say whether they can read it, and bash what it completes.
func TestCompletionsWorkInTheirShells(t *testing.T) {
	dir := t.TempDir()
	for shell, text := range map[string]string{"bash": bash(commands), "zsh": zsh(commands), "fish": fish(commands)} {
		file := filepath.Join(dir, shell)
		expect.Check(t, os.WriteFile(file, []byte(text), 0o600))
		if _, err := exec.LookPath(shell); err != nil {
			t.Logf("no %s here", shell)
			continue
		}
		if out, err := exec.Command(shell, "-n", file).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s cannot read its completion: %v\n%s", shell, err, out)
		}
	}
	for line, want := range map[string]string{
		"margolite ":                   "run logs compose --config --help",
		"margolite l":                  "logs",
		"margolite --config x logs --": "--tail --long-flag-name --since --follow --help",
		"margolite compose ":           "up --file --help",
		"margolite compose up --w":     "--wait",
		"margolite compose -n 5 up --": "--wait --help",
		"margolite nonsense ":          "",
	} {
		script := `. "$1"; read -ra COMP_WORDS <<<"$2"; [[ $2 == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _margolite; echo "${COMPREPLY[*]}"`
		out, err := exec.Command("bash", "-c", script, "bash", filepath.Join(dir, "bash"), line).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q is completed with %q, want %q (%v)", line, got, want, err)
		}
	}
}
