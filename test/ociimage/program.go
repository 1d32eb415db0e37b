package ociimage

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Busybox is the static busybox of this machine in /bin, with links for some of its applets.
func Busybox(applets ...string) ([]Entry, error) {
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, fmt.Errorf("cannot read busybox, is busybox-static installed? %w", err)
	}
	entries := []Entry{{Name: "bin/", Type: tar.TypeDir}, Executable("/bin/busybox", program)}
	for _, name := range applets {
		entries = append(entries, Entry{Name: "bin/" + name, Type: tar.TypeSymlink, Link: "busybox"})
	}
	return entries, nil
}

// BuildProgram builds a Go program for images: static, stripped, with no trace of the
// machine, for linux on arch (GOARCH, and for "arm/v7" also GOARM). An empty arch is this
// machine's. It needs the go command and is to be called from within the module.
func BuildProgram(ctx context.Context, importPath, arch string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "margolite-program-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "program")
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -buildid=", "-o", file, importPath)
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	goarch, variant, _ := strings.Cut(arch, "/v")
	if goarch != "" {
		command.Env = append(command.Env, "GOARCH="+goarch)
	}
	if variant != "" {
		command.Env = append(command.Env, "GOARM="+variant)
	}
	if said, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot build %s: %w: %s", importPath, err, bytes.TrimSpace(said))
	}
	return os.ReadFile(file)
}
