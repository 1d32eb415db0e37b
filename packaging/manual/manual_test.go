package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// said is the help of a program that has a bit of everything.
func said(args ...string) (string, error) {
	text, known := map[string]string{
		"":           "x is a program.\n\nUsage: margolite COMMAND\n\nCommands:\n  run          run it\n  logs         show what it's printing\n  compose      do more\n\nMore text.\n",
		"run":        "Usage: margolite run\n\nRun it.\n\nFlags:\n  --config FILE             read the configuration from FILE\n",
		"logs":       "Usage: margolite logs NAME [SERVICE...]\n\nShow what it's printing.\n\nFlags:\n  -n, --tail N              only the last N lines: all [of them]\n  --long-flag-name VALUE VALUE of it\n  --since TIME              since TIME\n  -f, --follow              go on\n",
		"compose":    "Usage: margolite compose up|down\n\nDo more.\n\nVerbs:\n  up       go up\n\nFlags:\n  -f, --file FILE           the FILE\n",
		"compose up": "Usage: margolite compose up [SERVICE...]\n\nGo up.\n\nFlags:\n  --wait                    wait\n",
	}[strings.Join(args, " ")]
	if !known {
		return "", errors.New("no such command")
	}
	return text, nil
}

func TestHelpIsUnderstood(t *testing.T) {
	commands, err := read(said)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range commands {
		names = append(names, c.name())
	}
	if got := strings.Join(names, ", "); got != "run, logs, compose, compose up" {
		t.Errorf("commands are %s", got)
	}
	logs := commands[1]
	if logs.usage != "NAME [SERVICE...]" || logs.text != "Show what it's printing" || len(logs.flags) != 4 {
		t.Errorf("logs is %+v", logs)
	}
	if got := (option{"long-flag-name", "", "VALUE", "VALUE of it"}); logs.flags[1] != got {
		t.Errorf("the flag is %+v", logs.flags[1])
	}
	if _, err := read(func(...string) (string, error) { return "Usage: something else\n", nil }); err == nil {
		t.Error("help without commands is understood")
	}
}

func TestThePageHasEveryCommandAndFlag(t *testing.T) {
	commands, _ := read(said)
	got := manual(page, commands)
	for _, want := range []string{
		".B margolite logs NAME [SERVICE...]\n", `\fB\-n, \-\-tail N\fR: only the last N lines`, ".B margolite compose up [SERVICE...]\n", ".SH FILES\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the page has no %q:\n%s", want, got)
		}
	}
}

// The shells themselves say whether they can read it, and bash what it completes.
func TestCompletionsWorkInTheirShells(t *testing.T) {
	commands, _ := read(said)
	dir := t.TempDir()
	for shell, text := range map[string]string{"bash": bash(commands), "zsh": zsh(commands), "fish": fish(commands)} {
		file := filepath.Join(dir, shell)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
