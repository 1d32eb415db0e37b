package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
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
	expect.Check(t, run(args, &out))
	for _, want := range []string{
		"margolite 1.2.3", "\ngo.etcd.io/bbolt v", "Copyright (c) 2013 Ben Johnson",
		"\nstdlib 1.", "Copyright 2009 The Go Authors", "Redistributions in binary form",
	} {
		expect.True(t, strings.Count(out.String(), want) != 0, "%q is not in the texts", want)
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
		expect.Check(t, os.WriteFile(filepath.Join(dir, "LICENSE.md"), []byte(text), 0o600))
		if found, err := readLicenses(dir); known != (err == nil) || len(found) == 0 && known {
			t.Errorf("%q is %q, %v", text, found, err)
		}
	}
	expect.True(t, expect.ErrorOf(readLicenses(t.TempDir())) != nil, "sources without a license pass")
}
