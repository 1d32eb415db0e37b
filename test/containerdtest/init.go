package containerdtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
)

var initProgram = sync.OnceValues(func() (string, error) {
	_, here, _, _ := runtime.Caller(0)
	repository := filepath.Join(filepath.Dir(here), "..", "..")
	checkout := digest.FromString(repository).Encoded()[:12] // others may have another one
	program := filepath.Join(os.TempDir(), "margolite-test-"+checkout, "margolite-init")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./cmd/margolite-init")
	build.Dir = repository
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return program, nil
})

// Init is the path of the program for services with init, built from this repository once per test program.
func Init(t testing.TB) string {
	path, err := initProgram()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
