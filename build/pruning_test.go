package build_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// The linker drops methods that nobody calls, unless something reachable looks
// methods up by name: then it keeps all of every type, which costs megabytes of
// binary and of memory.
func TestPOL11LinkerPrunesMethods(t *testing.T) {
	for tags, program := range map[string]string{
		"grpcnotrace,osusergo,netgo,no_rdt": "margolite",
		"no_grpc,osusergo,netgo":            "containerd-shim-runc-v2",
	} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(t.TempDir(), program), "-tags", tags, "-ldflags=-dumpdep", module+"/cmd/"+program)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out := expect.Value(cmd.StderrPipe())(t)
		check(t, cmd.Start())
		edges := 0
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for ; lines.Scan(); edges++ {
			if strings.Contains(lines.Text(), "<ReflectMethod>") {
				t.Errorf("%s: methods are looked up by name: %s", program, lines.Text())
			}
		}
		if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
			t.Fatalf("cannot build %s: %v", program, err)
		}
		expect.True(t, edges >= 1000, "%s: the linker told of %d edges only", program, edges)
	}
}
