package compose_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/fault"
)

// packed is an archive of files, and of links where the content starts with ->.
func packed(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), Typeflag: tar.TypeReg}
		content := files[name]
		if to, is := strings.CutPrefix(content, "->"); is {
			h.Typeflag, h.Linkname, h.Size, content = tar.TypeSymlink, to, 0, ""
		}
		check(t, w.WriteHeader(&h))
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	check(t, w.Close())
	return gzipped(t, archive.Bytes())
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

// What a workload does to the files of its package changes what it has mounted,
// and nothing of what is loaded.
func TestLoadTakesThePackageForWhatItIs(t *testing.T) {
	archive := packed(t, whole)
	dir := filepath.Join(t.TempDir(), "d")
	load := func() (*compose.Project, []string) {
		t.Helper()
		extracted, err := compose.Extract(archive, dir, true)
		check(t, err)
		p, err := compose.Load(context.Background(), compose.Options{ProjectName: "p", Files: []string{extracted.File}, Package: extracted, Strict: true})
		check(t, err)
		var hashes []string
		for _, name := range p.Order() {
			hash, err := p.ConfigHash(name, "sha256:0")
			check(t, err)
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
		if m.Path != filepath.Join(dir, "app", filepath.Base(m.Target)) {
			t.Errorf("mount at %s is of %s", m.Target, m.Path)
		}
	}

	bad := t.TempDir()
	evil := "services: {web: {image: evil, privileged: true}, base: {image: evil}, deep: {image: evil}, deeper: {image: evil}, more: {image: evil}}"
	check(t, os.WriteFile(filepath.Join(bad, "compose.yaml"), []byte(evil), 0o600))
	for name, tamper := range map[string]func(path string) error{
		"rewritten": func(path string) error { return os.WriteFile(path, []byte(evil), 0o600) },
		"gone":      os.RemoveAll,
		"a link": func(path string) error {
			return errors.Join(os.RemoveAll(path), os.Symlink(filepath.Join(bad, "compose.yaml"), path))
		},
		"a directory": func(path string) error { return errors.Join(os.RemoveAll(path), os.MkdirAll(path, 0o755)) },
	} {
		for file := range whole {
			check(t, tamper(filepath.Join(dir, file)))
		}
		if _, got := load(); !slices.Equal(got, want) {
			t.Errorf("%s: loaded something else", name)
		}
		for file := range whole {
			check(t, os.RemoveAll(filepath.Join(dir, file)))
		}
	}

	t.Log("nor does what was not in the package")
	for file, content := range map[string]string{"optional.env": "EVIL=1\n", "more/.env": "TAG=evil\n", "data/y": "new"} {
		check(t, os.WriteFile(filepath.Join(dir, "app", file), []byte(content), 0o600))
	}
	if _, got := load(); !slices.Equal(got, want) {
		t.Error("new files were loaded")
	}

	t.Log("whose place it is to be a directory may be a link as well")
	check(t, errors.Join(os.RemoveAll(filepath.Join(dir, "app")), os.Symlink(bad, filepath.Join(dir, "app"))))
	if _, got := load(); !slices.Equal(got, want) {
		t.Error("a link was followed")
	}
	if left, err := os.ReadDir(bad); err != nil || len(left) != 1 {
		t.Errorf("written through the link: %v, %v", left, err)
	}
}

func TestExtractLeavesWhatWorkloadsMade(t *testing.T) {
	archive := packed(t, whole)
	dir := filepath.Join(t.TempDir(), "d")
	data := filepath.Join(dir, "app/data/x")
	for n := range 2 {
		if _, err := compose.Extract(archive, dir, true); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(data)
		if want := []string{"mine to change", "changed"}[n]; err != nil || string(content) != want {
			t.Fatalf("content is %q, %v", content, err)
		}
		if err := errors.Join(os.WriteFile(data, []byte("changed"), 0o600), os.Remove(filepath.Join(dir, "app/compose.yaml"))); n == 0 && err != nil {
			t.Fatal(err)
		}
	}
}

// Small packages are kept in memory; of others, files are read again.
func TestLoadReadsLargePackages(t *testing.T) {
	files := map[string]string{"app/compose.yaml": "services: {web: {image: nginx, configs: [a], env_file: [z]}}\nconfigs: {a: {file: a/9}}", "app/z": "Z=1"}
	for _, n := range "0123456789" {
		files["app/a/"+string(n)] = strings.Repeat(string(n), 1<<20)
	}
	extracted, err := compose.Extract(packed(t, files), filepath.Join(t.TempDir(), "d"), true)
	check(t, err)
	p, err := compose.Load(context.Background(), compose.Options{ProjectName: "p", Files: []string{extracted.File}, Package: extracted, Strict: true})
	check(t, err)
	if web := p.Services["web"]; web.Environment["Z"] != "1" || string(web.Files[0].Content) != files["app/a/9"] {
		t.Error("files are not what the package has")
	}
}

// A legacy package may name files of the device. Its own are not among them.
func TestLoadOfLegacyPackageByAnotherName(t *testing.T) {
	base := t.TempDir()
	dir, link := filepath.Join(base, "d"), filepath.Join(base, "link")
	check(t, os.Symlink(dir, link))
	extracted, err := compose.Extract(packed(t, map[string]string{"compose.yaml": "services: {web: {image: nginx, env_file: [" + link + "/vars]}}", "vars": "A=1"}), dir, false)
	check(t, err)
	_, err = compose.Load(context.Background(), compose.Options{ProjectName: "p", Files: []string{extracted.File}, Package: extracted})
	if fault.CodeOf(err) != fault.InvalidPackage || !strings.Contains(err.Error(), "named as if it did not") {
		t.Errorf("error %v", err)
	}
}
