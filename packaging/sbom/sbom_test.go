package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// describe runs the program for a copy of the test's own, which has modules and a
// standard library as every program has.
func describe(t *testing.T, texts string) document {
	t.Helper()
	var out bytes.Buffer
	if err := run([]string{"-version", "1.2.3", "-time", "1777636800", "-licenses", texts, "/proc/self/exe"}, &out); err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(out.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// What SPDX wants of a document: every element has an identifier of its own in the
// letters that it allows, relations are between those, and nothing required is empty.
func TestTheDocumentIsSPDX(t *testing.T) {
	d := describe(t, filepath.Join(t.TempDir(), "texts"))
	if d.SPDXVersion != "SPDX-2.3" || d.DataLicense != "CC0-1.0" || d.CreationInfo.Created != "2026-05-01T12:00:00Z" || len(d.CreationInfo.Creators) == 0 ||
		!strings.HasPrefix(d.DocumentNamespace, "https://") || strings.Contains(d.DocumentNamespace, "#") || d.Name != "margolite-1.2.3" {
		t.Errorf("the document begins with %+v", d)
	}
	ids := []string{d.SPDXID}
	for _, p := range d.Packages {
		if slices.Contains(ids, p.SPDXID) || strings.Trim(strings.TrimPrefix(p.SPDXID, "SPDXRef-"), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") != "" {
			t.Errorf("%q is there twice, or is no identifier", p.SPDXID)
		}
		ids = append(ids, p.SPDXID)
		if p.Name == "" || p.VersionInfo == "" || p.DownloadLocation == "" || p.LicenseDeclared == "" || p.CopyrightText == "" || p.FilesAnalyzed {
			t.Errorf("something is missing: %+v", p)
		}
	}
	described := false
	for _, r := range d.Relationships {
		if !slices.Contains(ids, r.Element) || !slices.Contains(ids, r.Related) {
			t.Errorf("a relation with what is not there: %+v", r)
		}
		described = described || r.Type == "DESCRIBES" && r.Element == d.SPDXID
	}
	if !described || len(d.Relationships) < len(d.Packages) {
		t.Errorf("not everything is related: %+v", d.Relationships)
	}
}

// Programs of the agent are described with what is linked into them, their bytes
// and licenses that are known; twice with the same words.
func TestProgramsAreDescribedWithTheirModulesAndLicenses(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: builds the programs")
	}
	dir := t.TempDir()
	programs := []string{"-name", "margolite", "-version", "1.2.3", "-time", "1777636800"}
	for tags, p := range map[string]string{
		"grpcnotrace,osusergo,netgo,no_rdt": "margolite", "no_grpc,osusergo,netgo": "containerd-shim-runc-v2", "": "margolite-init",
	} {
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", tags, "-o", filepath.Join(dir, p), own+"/cmd/"+p)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		programs = append(programs, filepath.Join(dir, p))
	}
	var first, second bytes.Buffer
	texts := filepath.Join(dir, "texts")
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := run(append([]string{"-licenses", texts}, programs...), out); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("twice is not the same")
	}
	var d document
	if err := json.Unmarshal(first.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	found := map[string]part{}
	for _, p := range d.Packages {
		found[p.Name] = p
	}
	for name, license := range map[string]string{
		"margolite": "Apache-2.0", "stdlib": "BSD-3-Clause", "go.etcd.io/bbolt": "MIT", "github.com/containerd/containerd/v2": "Apache-2.0",
		"golang.org/x/sys": "BSD-3-Clause", "github.com/intel/goresctrl": "Apache-2.0", "github.com/klauspost/compress": "Apache-2.0 AND BSD-3-Clause AND MIT",
	} {
		if p := found[name]; p.LicenseDeclared != license {
			t.Errorf("%s is under %q, want %q", name, p.LicenseDeclared, license)
		}
	}
	linked := relationship{"SPDXRef-Program-margolite", "STATIC_LINK", found["go.etcd.io/bbolt"].SPDXID}
	if !slices.Contains(d.Relationships, linked) {
		t.Errorf("%+v is not in %+v", linked, d.Relationships)
	}
	linked.Element = "SPDXRef-Program-margolite-init"
	if slices.Contains(d.Relationships, linked) {
		t.Error("the init is said to have the agent's database")
	}
	notices, err := os.ReadFile(texts)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\ngo.etcd.io/bbolt v", "Copyright (c) 2013 Ben Johnson", "Redistributions in binary form", "The Go Authors"} {
		if !strings.Contains(string(notices), want) {
			t.Errorf("%q is not in the texts", want)
		}
	}
}

// A license that nobody has looked at stops the release.
func TestUnknownLicensesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"Permission is hereby granted, free of\ncharge, to any person obtaining a copy of this software": "MIT",
		"                    GNU GENERAL PUBLIC LICENSE\n Version 3, 29 June 2007":                       "",
		"": "",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "LICENSE.md"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := readLicenses(dir)
		switch {
		case want == "" && err == nil:
			t.Errorf("%q passes as %+v", text, found)
		case want != "" && (err != nil || found[0].id != want):
			t.Errorf("%q is %+v, %v, want %s", text, found, err, want)
		}
	}
	if _, err := readLicenses(t.TempDir()); err == nil {
		t.Error("sources without a license pass")
	}
}
