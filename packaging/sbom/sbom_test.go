package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The licenses of everything that is linked into the programs are known.
func TestProgramsComeWithTheirLicenses(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: builds the programs")
	}
	dir := t.TempDir()
	args := []string{"1.2.3"}
	for tags, p := range map[string]string{
		"grpcnotrace,osusergo,netgo,no_rdt": "margolite", "no_grpc,osusergo,netgo": "containerd-shim-runc-v2", "": "margolite-init",
	} {
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", tags, "-o", filepath.Join(dir, p), "../../cmd/"+p)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		args = append(args, filepath.Join(dir, p))
	}
	var out bytes.Buffer
	if err := run(args, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"margolite 1.2.3", "\ngo.etcd.io/bbolt v", "Copyright (c) 2013 Ben Johnson",
		"\nstdlib 1.", "Copyright 2009 The Go Authors", "Redistributions in binary form",
	} {
		if strings.Count(out.String(), want) == 0 {
			t.Errorf("%q is not in the texts", want)
		}
	}
}

// A license that nobody has looked at stops the release.
func TestUnknownLicensesAreRefused(t *testing.T) {
	for text, known := range map[string]bool{
		"Permission is hereby granted, free of\ncharge, to any person obtaining a copy of this software": true,
		"                    GNU GENERAL PUBLIC LICENSE\n Version 3, 29 June 2007":                       false,
		"": false,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "LICENSE.md"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if found, err := readLicenses(dir); known != (err == nil) || len(found) == 0 && known {
			t.Errorf("%q is %q, %v", text, found, err)
		}
	}
	if _, err := readLicenses(t.TempDir()); err == nil {
		t.Error("sources without a license pass")
	}
}
