package demoimage_test

import (
	"bytes"
	"context"
	"debug/elf"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/demoapp/demoimage"
)

func TestTheImageHoldsAStaticProgram(t *testing.T) {
	program, err := demoimage.Program(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	image, err := demoimage.FromProgram(program, demoimage.Options{Version: "1.0.0", Padding: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, blob := range image.Blobs {
		size += len(blob)
	}
	if size < 1<<20 || size > 16<<20 {
		t.Errorf("the image has %d bytes", size)
	}
	binary, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
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
