package container

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

func TestFieldsOfAProcess(t *testing.T) {
	for name, test := range map[string]struct {
		stat string
		want []string
	}{
		"a plain name":                  {"1 (sh) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 12 13", []string{"S", "4711"}},
		"a name that looks like fields": {"1 (a) S 0 (b) Z 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 12 13", []string{"Z", "4711"}},
		"a line that is cut off":        {"1 (sh) S 0 1 1", []string{"S", ""}},
		"nothing":                       {"", []string{"", ""}},
	} {
		expect.Equal(t, fieldsOf([]byte(test.stat), 3, 22), test.want, "%s", name)
	}
}

func FuzzFieldsOfAProcess(f *testing.F) {
	f.Add([]byte("1 (sh) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 12 13"))
	f.Add([]byte(")"))
	f.Fuzz(func(_ *testing.T, stat []byte) { fieldsOf(stat, 3, 22) })
}

// A process in a container may call itself a shim, but is not taken for one.
func TestAProcessOfAContainerIsNoShim(t *testing.T) {
	sleep := expect.Value(exec.LookPath("sleep"))(t)
	text := expect.Value(os.ReadFile(sleep))(t)
	program := filepath.Join(t.TempDir(), shimProcess) // which is what the kernel calls it
	check(t, os.WriteFile(program, text, 0o755))
	for name, flags := range map[string]uintptr{"a shim": 0, "a process of a container": syscall.CLONE_NEWPID} {
		process := exec.Command(program, "1000")
		process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		check(t, process.Start())
		expect.Equal(t, isShim(process.Process.Pid), flags == 0, "%s", name)
		_ = process.Process.Kill()
		_ = process.Wait()
	}
}
