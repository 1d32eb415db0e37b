package compose_test

import (
	"archive/tar"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

// packed is an archive of files, and of links where the content starts with ->.
func packed(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var entries []ociimage.Entry
	for _, name := range slices.Sorted(maps.Keys(files)) {
		e := ociimage.Entry{Name: name, Data: []byte(files[name])}
		if to, is := strings.CutPrefix(files[name], "->"); is {
			e = ociimage.Entry{Name: name, Type: tar.TypeSymlink, Link: to}
		}
		entries = append(entries, e)
	}
	return expect.Value(ociimage.TarGzip(entries))(t)
}

// whole is a package that refers to files in every way there is.
var whole = map[string]string{
	"app/compose.yaml": `
include: [{path: more/compose.yaml, env_file: more/vars}]
services:
  web:
    extends: {file: "${BASE}/web.yaml", service: base}
    env_file: [link.env, {path: optional.env, required: false}]
    label_file: [labels]
    configs: [conf]
    secrets: [pass]
    security_opt: ["seccomp=seccomp.json"]
    volumes: ["./data:/data"]
configs: {conf: {file: conf/app.conf}}
secrets: {pass: {file: pass}}
`,
	"app/.env":              "BASE=base\nTAG=good\n",
	"app/base/web.yaml":     "services: {base: {extends: {file: ../deep/web.yaml, service: deep}, labels: {base: good}}}",
	"app/deep/web.yaml":     "x-file: &file {file: ../deeper.yaml, service: deeper}\nservices: {deep: {extends: *file, cap_drop: !override [ALL]}}",
	"app/deeper.yaml":       "services: {deeper: {image: 'nginx:${TAG}', volumes: ['./deeper:/deeper']}}",
	"app/real.env":          "GOOD=yes\n",
	"app/link.env":          "->real.env",
	"app/labels":            "from.file=good\n",
	"app/conf/app.conf":     "good",
	"app/pass":              "good",
	"app/seccomp.json":      `{"good": 1}`,
	"app/more/compose.yaml": "services: {more: {image: 'busybox:${TAG}'}}",
	"app/more/vars":         "TAG=good\n",
	"app/data/x":            "mine to change",
}

// loadPackage extracts a package into dir and loads its project.
func loadPackage(t testing.TB, archive []byte, dir string, strict bool) (*compose.Project, error) {
	t.Helper()
	extracted := expect.Value(compose.Extract(archive, dir, strict))(t)
	return compose.Load(t.Context(), compose.Options{ProjectName: "p", Files: []string{extracted.File}, Package: extracted, Strict: strict})
}

// What a workload does to the files of its package changes what it has mounted,
// and nothing of what is loaded.
func TestLoadTakesThePackageForWhatItIs(t *testing.T) {
	archive := packed(t, whole)
	dir := filepath.Join(t.TempDir(), "d")
	load := func() (*compose.Project, []string) {
		t.Helper()
		p := expect.Value(loadPackage(t, archive, dir, true))(t)
		var hashes []string
		for _, name := range p.Order() {
			hash := expect.Value(p.ConfigHash(name, "sha256:0"))(t)
			hashes = append(hashes, hash)
		}
		return p, hashes
	}
	p, want := load()
	web := p.Services["web"]
	if web.Image != "docker.io/library/nginx:good" && web.Image != "nginx:good" || web.Environment["GOOD"] != "yes" ||
		web.Labels["base"] != "good" || web.Labels["from.file"] != "good" || len(web.Files) != 2 || len(web.Mounts) != 2 || len(web.Seccomp.Profile) == 0 {
		t.Fatalf("loaded %+v", web)
	}
	for _, m := range web.Mounts {
		expect.Equal(t, m.Path, filepath.Join(dir, "app", filepath.Base(m.Target)), "path mounted at %s", m.Target)
	}

	bad := t.TempDir()
	evil := "services: {web: {image: evil, privileged: true}, base: {image: evil}, deep: {image: evil}, deeper: {image: evil}, more: {image: evil}}"
	expect.Check(t, os.WriteFile(filepath.Join(bad, "compose.yaml"), []byte(evil), 0o600))
	for name, tamper := range map[string]func(path string) error{
		"rewritten": func(path string) error { return os.WriteFile(path, []byte(evil), 0o600) },
		"gone":      os.RemoveAll,
		"a link": func(path string) error {
			return errors.Join(os.RemoveAll(path), os.Symlink(filepath.Join(bad, "compose.yaml"), path))
		},
		"a directory": func(path string) error { return errors.Join(os.RemoveAll(path), os.MkdirAll(path, 0o755)) },
	} {
		for file := range whole {
			expect.Check(t, tamper(filepath.Join(dir, file)))
		}
		_, got := load()
		expect.Equal(t, got, want, "hashes with files that are %s", name)
		for file := range whole {
			expect.Check(t, os.RemoveAll(filepath.Join(dir, file)))
		}
	}

	t.Log("nor does what was not in the package")
	for file, content := range map[string]string{"optional.env": "EVIL=1\n", "more/.env": "TAG=evil\n", "data/y": "new"} {
		expect.Check(t, os.WriteFile(filepath.Join(dir, "app", file), []byte(content), 0o600))
	}
	_, got := load()
	expect.Equal(t, got, want, "hashes with new files")

	t.Log("whose place it is to be a directory may be a link as well")
	expect.Check(t, errors.Join(os.RemoveAll(filepath.Join(dir, "app")), os.Symlink(bad, filepath.Join(dir, "app"))))
	_, got = load()
	expect.Equal(t, got, want, "hashes with a link")
	expect.Equal(t, entries(t, bad), []string{"compose.yaml"}, "files behind the link")
}

func TestExtractLeavesWhatWorkloadsMade(t *testing.T) {
	archive := packed(t, whole)
	dir := filepath.Join(t.TempDir(), "d")
	data := filepath.Join(dir, "app/data/x")
	for _, want := range []string{"mine to change", "changed"} {
		expect.Check(t, expect.ErrorOf(compose.Extract(archive, dir, true)))
		content := expect.Value(os.ReadFile(data))(t)
		expect.Equal(t, string(content), want, "content")
		expect.Check(t, errors.Join(os.WriteFile(data, []byte("changed"), 0o600), os.RemoveAll(filepath.Join(dir, "app/compose.yaml"))))
	}
}

// Small packages are kept in memory; of others, files are read again.
func TestLoadReadsLargePackages(t *testing.T) {
	files := map[string]string{"app/compose.yaml": "services: {web: {image: nginx, configs: [a], env_file: [z]}}\nconfigs: {a: {file: a/9}}", "app/z": "Z=1"}
	for _, n := range "0123456789" {
		files["app/a/"+string(n)] = strings.Repeat(string(n), 1<<20)
	}
	p := expect.Value(loadPackage(t, packed(t, files), filepath.Join(t.TempDir(), "d"), true))(t)
	if web := p.Services["web"]; web.Environment["Z"] != "1" || string(web.Files[0].Content) != files["app/a/9"] {
		t.Error("files are not what the package has")
	}
}

// A legacy package may name files of the device. Its own are not among them.
func TestLoadOfLegacyPackageByAnotherName(t *testing.T) {
	base := t.TempDir()
	dir, link := filepath.Join(base, "d"), filepath.Join(base, "link")
	expect.Check(t, os.Symlink(dir, link))
	_, err := loadPackage(t, packed(t, map[string]string{"compose.yaml": "services: {web: {image: nginx, env_file: [" + link + "/vars]}}", "vars": "A=1"}), dir, false)
	expectInvalid(t, err, "named as if it did not")
}
