// Sbom writes what programs are made of, as a bill of materials in SPDX 2.3, and
// the licenses of that: of the programs themselves, which say which versions of
// which modules they were linked from.
//
//	go run ./packaging/sbom -name NAME -version VERSION -time SECONDS [-out FILE] [-licenses FILE] PROGRAM...
//
// The licenses are read from the sources of those modules, as they were built.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("sbom", flag.ContinueOnError)
	var r release
	flags.StringVar(&r.name, "name", "margolite", "`NAME` of what is described")
	flags.StringVar(&r.version, "version", "", "its `VERSION`")
	seconds := flags.Int64("time", 0, "time of the commit, in `SECONDS`")
	file := flags.String("out", "", "`FILE` for the bill of materials; empty: it is printed")
	texts := flags.String("licenses", "", "`FILE` for the texts of the licenses; empty: none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if r.version == "" || flags.NArg() == 0 {
		return errors.New("name a version and programs")
	}
	r.created = time.Unix(*seconds, 0).UTC()
	for _, path := range flags.Args() {
		p, err := readProgram(path)
		if err != nil {
			return err
		}
		r.programs = append(r.programs, p)
	}
	if err := r.readModules(); err != nil {
		return err
	}
	if *texts != "" {
		if err := os.WriteFile(*texts, r.texts(), 0o644); err != nil {
			return err
		}
	}
	document, err := json.MarshalIndent(r.document(), "", "  ")
	if err != nil {
		return err
	}
	document = append(document, '\n')
	if *file == "" {
		_, err = out.Write(document)
		return err
	}
	return os.WriteFile(*file, document, 0o644)
}
