package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/expect"
)

func TestNothingIsClearedWithoutAYes(t *testing.T) {
	c, _, _ := awaiting(t)
	call(t, "clear", "--config", c.configFile).ends(t, command.Done, "", "There is nothing to remove")
	check(t, os.Mkdir(filepath.Join(filepath.Dir(c.configFile), "state"), 0o755))
	call(t, "clear", "--config", c.configFile).fails(t, "repeat this ")
	expect.Equal(t, call(t, "clear", "now").code, command.Usage, "clear now")
}
