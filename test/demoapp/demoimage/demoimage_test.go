package demoimage_test

import (
	"context"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/demoapp/demoimage"
)

func TestTheImageHoldsAStaticProgram(t *testing.T) {
	ctx := context.Background()
	first, err := demoimage.Image(ctx, demoimage.Options{Version: "1.0.0", Padding: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	again, err := demoimage.Image(ctx, demoimage.Options{Version: "1.0.0", Padding: 1 << 20})
	if err != nil || again.Digest != first.Digest {
		t.Errorf("the same image: %s and %s, %v", first.Digest, again.Digest, err)
	}
	other, err := demoimage.Image(ctx, demoimage.Options{Version: "2.0.0"})
	if err != nil || other.Digest == first.Digest {
		t.Errorf("another version has the same digest, %v", err)
	}
	size := 0
	for _, blob := range first.Blobs {
		size += len(blob)
	}
	if size < 1<<20 || size > 16<<20 {
		t.Errorf("the image has %d bytes", size)
	}

	program, err := demoimage.Program(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "demoapp")
	if err := os.WriteFile(file, program, 0o700); err != nil {
		t.Fatal(err)
	}
	binary, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	if libraries, err := binary.ImportedLibraries(); err != nil || len(libraries) != 0 {
		t.Errorf("it needs %q, %v", libraries, err)
	}
}

func TestTheComponentNamesTheImage(t *testing.T) {
	component, err := demoimage.Component(context.Background(), "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	compose := string(component.Files["compose.yaml"])
	if !strings.Contains(compose, "image: ${REGISTRY:?}/"+demoimage.Repository+":${TAG:-1.0.0}") {
		t.Errorf("compose.yaml is\n%s", compose)
	}
	if _, err := component.Build(); err != nil {
		t.Error(err)
	}
}
