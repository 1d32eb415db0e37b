package image_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/klauspost/compress/zstd"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/ociimage"
)

// memoryChild is set in the process that pulls within a limit: the host of the registry.
const memoryChild = "MARGOLITE_TEST_MEMORY_CHILD"

// zstdLayer packs a layer with a window of so many bytes.
func zstdLayer(t *testing.T, plain []byte, window int) rawLayer {
	t.Helper()
	var packed bytes.Buffer
	z, err := zstd.NewWriter(&packed, zstd.WithWindowSize(window))
	if err != nil {
		t.Fatal(err)
	}
	_, err = z.Write(plain)
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return rawLayer{packed.Bytes(), plain, v1.MediaTypeImageLayerZstd}
}

// Layers that a few bytes blow up to a big window are refused by a device that has no memory for it, however many come at
// a time, and those of a usual window are not.
func TestZstdWindowsStayWithinTheMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: memory in a child process")
	}
	group := filepath.Join("/sys/fs/cgroup/memory", fmt.Sprint("image-test-", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skip("needs a memory control group of version 1:", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(group, "memory.limit_in_bytes"), []byte("64M"), 0); err != nil {
		t.Fatal(err)
	}
	w := watch(t)
	for n := range 3 {
		plain, err := ociimage.Tar([]ociimage.Entry{{Name: fmt.Sprint("zeros", n), Data: make([]byte, 80<<20)}})
		if err != nil {
			t.Fatal(err)
		}
		for name, window := range map[string]int{"big": 64 << 20, "usual": 8 << 20} {
			layer := zstdLayer(t, plain, window)
			if len(layer.packed) > 50<<10 {
				t.Fatalf("layer has %d bytes", len(layer.packed))
			}
			img, err := mutate.AppendLayers(containerdtest.Busybox(t, nil), layer)
			if err != nil {
				t.Fatal(err)
			}
			containerdtest.Push(t, img, fmt.Sprintf("%s/%s%d:1", w.host, name, n))
		}
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sh", "-c", `echo $$ > "$0"/cgroup.procs && exec "$@"`, group,
		program, "-test.run=^TestMemoryChild$", "-test.v")
	child.Env = append(os.Environ(), memoryChild+"="+w.host)
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("%v\n%s", err, out)
	}
	most, _ := os.ReadFile(filepath.Join(group, "memory.max_usage_in_bytes"))
	t.Logf("memory at the most, with the page cache: %s", most)
}

// TestMemoryChild is the process with little memory.
func TestMemoryChild(t *testing.T) {
	host := os.Getenv(memoryChild)
	if host == "" {
		t.Skip("is started by TestZstdWindowsStayWithinTheMemory")
	}
	debug.SetMemoryLimit(64 << 20) // as programs do by their control group
	client := containerdtest.Embedded(t)
	ctx := containerdtest.Context(t)
	images := open(t, client, map[string]image.Registry{host: {PlainHTTP: true}})
	for n := range 3 {
		_, err := images.Pull(ctx, image.Want{Ref: fmt.Sprintf("%s/big%d:1", host, n)}, nil)
		if kind(err) != image.Unsupported || !strings.Contains(err.Error(), "memory") {
			t.Errorf("big window: %v of kind %q", err, kind(err))
		}
	}
	var wants []image.Want
	for n := range 3 {
		wants = append(wants, image.Want{Ref: fmt.Sprintf("%s/usual%d:1", host, n)})
	}
	if _, err := images.PullAll(ctx, wants, nil); err != nil {
		t.Errorf("usual windows: %v", err)
	}
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err == nil {
		t.Logf("%d KiB resident at the most", used.Maxrss)
	}
}
