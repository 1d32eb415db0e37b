package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// license is a file with one, as it lies in the sources.
type license struct {
	file string
	id   string // of SPDX; empty: a notice beside a license, which asks to be passed on
	text []byte
}

// kinds tell licenses by what only they say, in the order in which they are
// looked for. All of them let programs be passed on with their text.
var kinds = []struct{ id, says string }{
	{"Apache-2.0", "Apache License Version 2.0, January 2004"},
	{"MPL-2.0", "Mozilla Public License Version 2.0"},
	{"ISC", "Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted"},
	{"ISC", "Permission to use, copy, modify, and distribute this software for any purpose with or without fee is hereby granted"},
	{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy of this software"},
	{"BSD-3-Clause", "may be used to endorse or promote products derived from this software without specific prior written permission"},
	{"BSD-2-Clause", "Redistributions in binary form must reproduce the above copyright notice"},
}

var errNoLicense = errors.New("there is none that is known here")

// readLicenses reads the licenses at the top of a module. One that is of no known
// kind is an error: somebody has to read it.
func readLicenses(dir string) ([]license, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []license
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
		l := license{file: e.Name(), text: text}
		if name != "NOTICE" {
			if l.id = kindOf(text); l.id == "" {
				return nil, fmt.Errorf("%s: %w", e.Name(), errNoLicense)
			}
			known = true
		}
		all = append(all, l)
	}
	if !known {
		return nil, errNoLicense
	}
	return all, nil
}

// kindOf is the SPDX id of a text; empty: it is of no known kind. Some have more
// than one license in one text, as A AND B.
func kindOf(text []byte) string {
	words := strings.Join(strings.Fields(string(text)), " ")
	var found []string
	for _, k := range kinds {
		if !strings.Contains(words, k.says) || slices.Contains(found, k.id) {
			continue
		}
		if k.id == "BSD-2-Clause" && slices.Contains(found, "BSD-3-Clause") {
			continue // the longer one says that, too
		}
		found = append(found, k.id)
	}
	slices.Sort(found)
	return strings.Join(found, " AND ")
}

// expression is the SPDX expression for a module.
func (m module) expression() string {
	var ids []string
	for _, l := range m.licenses {
		for id := range strings.SplitSeq(l.id, " AND ") {
			if id != "" && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return strings.Join(ids, " AND ")
}

// texts are all licenses, each text once, after those who use it.
func (r *release) texts() []byte {
	type shared struct {
		text  []byte
		users []string
	}
	var all []*shared
	for _, m := range r.modules {
		for _, l := range m.licenses {
			i := slices.IndexFunc(all, func(s *shared) bool { return bytes.Equal(s.text, l.text) })
			if i < 0 {
				i, all = len(all), append(all, &shared{text: l.text})
			}
			all[i].users = append(all[i].users, m.path+" "+m.version)
		}
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "The programs of %s %s contain these modules, under these licenses.\n", r.name, r.version)
	for _, s := range all {
		fmt.Fprintf(&out, "\n%s\n\n%s\n\n%s\n", strings.Repeat("=", 78), strings.Join(s.users, "\n"), bytes.TrimSpace(s.text))
	}
	return out.Bytes()
}
