// Sbom prints the licenses of the modules that programs were linked from, which must be passed on with the programs. A
// module whose license is of no known kind is an error: somebody has to read it.
//
//	go run ./packaging/sbom VERSION PROGRAM...
//
// The programs name their modules; the texts are read from the sources of those.
package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// kinds tell licenses by words that only they have. All of them let programs be passed on with their text.
var kinds = []string{
	"Apache License Version 2.0, January 2004",
	"Mozilla Public License Version 2.0",
	"Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted", // ISC
	"Permission to use, copy, modify, and distribute this software for any purpose with or without fee is hereby granted",    // ISC
	"Permission is hereby granted, free of charge, to any person obtaining a copy of this software",                          // MIT
	"Redistributions in binary form must reproduce the above copyright notice",                                               // BSD
}

var errNoLicense = errors.New("there is none that is known here")

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) < 2 {
		return errors.New("name a version and programs")
	}
	modules, err := linked(args[1:])
	if err != nil {
		return err
	}
	golang, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("cannot find the sources: %w", err)
	}
	cache, root, _ := strings.Cut(strings.TrimSpace(string(golang)), "\n")

	// Each text once, after those who use it.
	users := map[string][]string{}
	var texts []string
	for _, m := range modules {
		dir := root
		if m.Path != standard {
			path, err := module.EscapePath(m.Path)
			version, err2 := module.EscapeVersion(m.Version)
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			dir = filepath.Join(cache, path+"@"+version)
		}
		licenses, err := readLicenses(dir)
		if err != nil {
			return fmt.Errorf("cannot tell the license of %s %s: %w", m.Path, m.Version, err)
		}
		for _, text := range licenses {
			if users[text] == nil {
				texts = append(texts, text)
			}
			users[text] = append(users[text], m.Path+" "+m.Version)
		}
	}
	var all bytes.Buffer
	fmt.Fprintf(&all, "The programs of margolite %s contain these modules, under these licenses.\n", args[0])
	for _, text := range texts {
		fmt.Fprintf(&all, "\n%s\n\n%s\n\n%s\n", strings.Repeat("=", 78), strings.Join(users[text], "\n"), strings.TrimSpace(text))
	}
	_, err = out.Write(all.Bytes())
	return err
}

// standard is the standard library among the modules.
const standard = "stdlib"

// linked returns what programs are linked from, sorted, the standard library included.
func linked(programs []string) ([]module.Version, error) {
	var all []module.Version
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return nil, fmt.Errorf("cannot read what %s is made of: %w", program, err)
		}
		golang, _, _ := strings.Cut(strings.TrimPrefix(info.GoVersion, "go"), " ")
		all = append(all, module.Version{Path: standard, Version: golang})
		for _, d := range info.Deps {
			all = append(all, module.Version{Path: d.Path, Version: d.Version})
		}
	}
	module.Sort(all)
	return slices.Compact(all), nil
}

// readLicenses reads the licenses at the top of a module, and notices that ask to be passed on.
func readLicenses(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []string
	known := false
	for _, e := range entries {
		name, _, _ := strings.Cut(strings.ToUpper(e.Name()), ".")
		if !e.Type().IsRegular() || !slices.Contains([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE"}, name) {
			continue
		}
		if strings.HasSuffix(e.Name(), ".docs") {
			continue // of texts that no program has
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if name != "NOTICE" {
			if !isKnown(string(text)) {
				return nil, fmt.Errorf("%s: %w", e.Name(), errNoLicense)
			}
			known = true
		}
		all = append(all, string(text))
	}
	if !known {
		return nil, errNoLicense
	}
	return all, nil
}

func isKnown(text string) bool {
	words := strings.Join(strings.Fields(text), " ")
	return slices.ContainsFunc(kinds, func(says string) bool { return strings.Contains(words, says) })
}
