// Command sizes says what a program is made of: for each module how many bytes
// of code and data it brings, what that is in the stripped file, and who pulls
// it in. build/README.md has its output.
//
//	go run ./build/sizes [-tags TAGS] [-packages] ./cmd/margolite
//
// The target is that of GOOS, GOARCH and GOARM.
package main

import (
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sizes:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("sizes", flag.ContinueOnError)
	tags := flags.String("tags", "", "build tags")
	packages := flags.Bool("packages", false, "a row for each package instead of each module")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("name one package of a program")
	}
	dir, err := os.MkdirTemp("", "sizes")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "program")
	build := []string{"build", "-trimpath", "-buildvcs=false", "-o", program, "-tags", *tags}
	// As the Makefile, which calls this.
	build = append(build, strings.Fields(os.Getenv("SMALL"))...)
	if _, err := tool(append(build, flags.Arg(0))...); err != nil {
		return err
	}
	imports, err := readImports(*tags, flags.Arg(0))
	if err != nil {
		return err
	}
	parts, whole, err := measure(program)
	if err != nil {
		return err
	}
	return print(out, imports, parts, whole, *packages)
}

func tool(args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("cannot run go %s: %w", args[0], err)
	}
	return string(out), nil
}

// size is what symbols have in a file.
type size struct{ code, data uint64 }

// measure adds up the symbols of each package, and what they are together; data
// are then the sections beside the code that a stripped file has.
func measure(program string) (parts map[string]size, whole size, err error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, size{}, err
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return nil, size{}, err
	}
	for _, s := range f.Sections {
		switch {
		case s.Flags&elf.SHF_ALLOC == 0 || s.Type == elf.SHT_NOBITS:
		case s.Flags&elf.SHF_EXECINSTR != 0:
			whole.code += s.Size
		default:
			whole.data += s.Size
		}
	}
	parts = map[string]size{}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || int(s.Section) >= len(f.Sections) {
			continue
		}
		section := f.Sections[s.Section]
		part := parts[packageOf(s.Name)]
		switch {
		case section.Type == elf.SHT_NOBITS || section.Name == ".gopclntab":
			continue
		case section.Flags&elf.SHF_EXECINSTR != 0:
			part.code += s.Size
		default:
			part.data += s.Size
		}
		parts[packageOf(s.Name)] = part
	}
	return parts, whole, nil
}

// packageOf is the package that a symbol belongs to; what is made of a generic
// one counts where that was written.
func packageOf(symbol string) string {
	name, _, _ := strings.Cut(symbol, "[")
	for _, prefix := range []string{"type:.eq.", "type:.hash.", "go:itab.", "*"} {
		name = strings.TrimPrefix(name, prefix)
	}
	slash := strings.LastIndexByte(name, '/') + 1
	if dot := strings.IndexByte(name[slash:], '.'); dot >= 0 {
		name = name[:slash+dot]
	}
	return strings.ReplaceAll(name, "%2e", ".")
}

// imports is who imports whom, in modules as well.
type imports struct {
	program string
	module  map[string]string // by package
	to      map[string][]string
}

func readImports(tags, program string) (*imports, error) {
	out, err := tool("list", "-deps", "-tags", tags, "-f", `{{.ImportPath}} {{with .Module}}{{.Path}}{{else}}std{{end}} {{join .Imports " "}}`, program)
	if err != nil {
		return nil, err
	}
	i := &imports{module: map[string]string{}, to: map[string][]string{}}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		i.program = fields[0] // which is the last
		i.module[fields[0]], i.to[fields[0]] = fields[1], fields[2:]
	}
	return i, nil
}

// moduleOf is where a package is from; the linker calls that of the program main.
func (i *imports) moduleOf(pkg string) string {
	if pkg == "main" {
		pkg = i.program
	}
	if module, known := i.module[pkg]; known {
		return module
	}
	return "std"
}

// chain is the shortest way from the program to a package of a module, as
// packages, without those that are the module's own.
func (i *imports) chain(reached func(string) bool) []string {
	from := map[string]string{i.program: ""}
	queue := []string{i.program}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if reached(at) {
			var way []string
			for at = from[at]; at != "" && at != i.program; at = from[at] {
				way = append(way, at)
			}
			slices.Reverse(way)
			return way
		}
		for _, next := range i.to[at] {
			if _, seen := from[next]; !seen {
				from[next] = at
				queue = append(queue, next)
			}
		}
	}
	return nil
}

func print(out io.Writer, i *imports, parts map[string]size, whole size, packages bool) error {
	rows := map[string]size{}
	var counted uint64
	for pkg, s := range parts {
		name := i.moduleOf(pkg)
		if packages {
			name = pkg
		}
		row := rows[name]
		rows[name] = size{row.code + s.code, row.data + s.data}
		counted += s.data
	}
	// Types, texts and line tables have no symbols of their own; there are about
	// as many of them as there is code.
	rest := float64(whole.data-min(counted, whole.data)) / float64(whole.code)
	inFile := func(s size) float64 { return float64(s.code)*(1+rest) + float64(s.data) }
	names := make([]string, 0, len(rows))
	for name := range rows {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return int(inFile(rows[b]) - inFile(rows[a])) })

	fmt.Fprintf(out, "%.1f MB of code, %.1f MB of line tables, types and data\n\n", float64(whole.code)/1e6, float64(whole.data)/1e6)
	fmt.Fprintln(out, "| KB | of which code | what | comes by |\n| ---: | ---: | --- | --- |")
	for _, name := range names {
		kb := inFile(rows[name]) / 1e3
		if kb < 10 {
			break
		}
		way := i.chain(func(pkg string) bool {
			if packages {
				return pkg == name
			}
			return i.module[pkg] == name
		})
		own, _, _ := strings.Cut(i.program, "/cmd/")
		for n, pkg := range way {
			way[n] = strings.TrimPrefix(pkg, own+"/")
		}
		if name == "std" || name == own {
			way = nil
		}
		fmt.Fprintf(out, "| %.0f | %.0f | %s | %s |\n", kb, float64(rows[name].code)/1e3, strings.TrimPrefix(name, own+"/"), strings.Join(way, " → "))
	}
	return nil
}
