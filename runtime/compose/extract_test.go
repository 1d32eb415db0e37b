package compose_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

const yaml = "services: {web: {image: nginx}}\n"

// archive makes a gzip-compressed tar of the entries.
func archive(t testing.TB, entries ...ociimage.Entry) []byte {
	t.Helper()
	return expect.Value(ociimage.TarGzip(entries))(t)
}

// unpacked makes a tar of the entries.
func unpacked(t testing.TB, entries ...ociimage.Entry) []byte {
	t.Helper()
	return expect.Value(ociimage.Tar(entries))(t)
}

func file(name string) ociimage.Entry { return ociimage.Entry{Name: name, Data: []byte(yaml)} }

func dir(name string) ociimage.Entry {
	return ociimage.Entry{Name: name, Type: tar.TypeDir, Mode: 0o700}
}

func link(name, target string) ociimage.Entry {
	return ociimage.Entry{Name: name, Link: target, Type: tar.TypeSymlink}
}

func hardLink(name, target string) ociimage.Entry {
	return ociimage.Entry{Name: name, Link: target, Type: tar.TypeLink}
}

// listing is what lies under root: names, kinds and modes.
func listing(t testing.TB, root string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		all = append(all, info.Mode().String()+" "+rel)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return all
}

func TestExtract(t *testing.T) {
	var global bytes.Buffer
	w := tar.NewWriter(&global)
	expect.Check(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}))
	expect.Check(t, w.Flush())
	for name, c := range map[string]struct {
		archive     []byte
		legacy      bool
		composeFile string
		want        []string
	}{
		"PKG-06 takes one directory with a compose.yaml": {
			archive:     archive(t, dir("app/"), file("app/compose.yaml"), file("app/conf/x.conf")),
			composeFile: "app/compose.yaml",
			want:        []string{"drwxr-xr-x app", "-rw-r--r-- app/compose.yaml", "drwxr-xr-x app/conf", "-rw-r--r-- app/conf/x.conf"},
		},
		"PKG-06 takes a directory of any name": {
			archive:     archive(t, file("digitron_2 (final)/compose.yaml"), file("digitron_2 (final)/app/compose.yaml")),
			composeFile: "digitron_2 (final)/compose.yaml",
			want: []string{
				"drwxr-xr-x digitron_2 (final)", "drwxr-xr-x digitron_2 (final)/app",
				"-rw-r--r-- digitron_2 (final)/app/compose.yaml", "-rw-r--r-- digitron_2 (final)/compose.yaml",
			},
		},
		"takes ./ in front of names, and a global header": {
			archive:     expect.Value(ociimage.Gzip(append(global.Bytes(), unpacked(t, dir("./"), dir("./app"), file("./app/compose.yaml"))...)))(t),
			composeFile: "app/compose.yaml",
			want:        []string{"drwxr-xr-x app", "-rw-r--r-- app/compose.yaml"},
		},
		"takes directories after what is in them": {
			archive:     archive(t, file("app/compose.yaml"), dir("app/")),
			composeFile: "app/compose.yaml",
			want:        []string{"drwxr-xr-x app", "-rw-r--r-- app/compose.yaml"},
		},
		"PKG-09 keeps of modes whether a file is a program": {
			archive: archive(t, file("app/compose.yaml"), ociimage.Entry{Name: "app/run", Mode: 0o6711},
				ociimage.Entry{Name: "app/read-only", Mode: 0o400}, ociimage.Entry{Name: "app/sticky", Type: tar.TypeDir, Mode: 0o1777}),
			composeFile: "app/compose.yaml",
			want: []string{
				"drwxr-xr-x app", "-rw-r--r-- app/compose.yaml", "-rw-r--r-- app/read-only",
				"-rwxr-xr-x app/run", "drwxr-xr-x app/sticky",
			},
		},
		"PKG-07 takes links that stay inside": {
			archive: archive(t, file("app/compose.yaml"), file("app/a/b/file"), link("app/to-file", "a/b/file"),
				link("app/a/up", "../compose.yaml"), link("app/to-dir", "./a/b"), link("app/through", "to-dir/../up"),
				link("app/to-nothing", "nowhere/at/all"), hardLink("app/hard", "app/a/b/file"), hardLink("app/harder", "./app/hard")),
			composeFile: "app/compose.yaml",
			want: []string{
				"drwxr-xr-x app", "drwxr-xr-x app/a", "drwxr-xr-x app/a/b", "-rw-r--r-- app/a/b/file", "Lrwxrwxrwx app/a/up",
				"-rw-r--r-- app/compose.yaml", "-rw-r--r-- app/hard", "-rw-r--r-- app/harder", "Lrwxrwxrwx app/through",
				"Lrwxrwxrwx app/to-dir", "Lrwxrwxrwx app/to-file", "Lrwxrwxrwx app/to-nothing",
			},
		},
		"PKG-15 takes a legacy package with the file in its root": {
			archive: archive(t, file("docker-compose.yml"), file("x/compose.yaml")), legacy: true,
			composeFile: "docker-compose.yml",
			want:        []string{"-rw-r--r-- docker-compose.yml", "drwxr-xr-x x", "-rw-r--r-- x/compose.yaml"},
		},
		"takes a legacy package with the file in its directory": {
			archive: archive(t, file("x/docker-compose.yaml"), file("x/compose.yml")), legacy: true,
			composeFile: "x/compose.yml",
			want:        []string{"drwxr-xr-x x", "-rw-r--r-- x/compose.yml", "-rw-r--r-- x/docker-compose.yaml"},
		},
		"PKG-15 takes a legacy package that is a Compose file": {
			archive: []byte(yaml), legacy: true,
			composeFile: "compose.yaml",
			want:        []string{"-rw-r--r-- compose.yaml"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			dir := filepath.Join(base, "projects", "p1")
			for range 2 { // the second time it is there already
				got := expect.Value(compose.Extract(c.archive, dir, !c.legacy))(t)
				expect.Equal(t, got.File, filepath.Join(dir, c.composeFile), "Compose file")
				expect.Equal(t, listing(t, dir), c.want, "extracted")
			}
			content := expect.Value(os.ReadFile(filepath.Join(dir, c.composeFile)))(t)
			expect.Equal(t, string(content), yaml, "Compose file")
			expect.Equal(t, entries(t, filepath.Dir(dir)), []string{"p1"}, "left beside the directory")
		})
	}
}

func TestPKG05ExtractRefuses(t *testing.T) {
	good := archive(t, file("app/compose.yaml"))
	ok := file("app/compose.yaml")
	many := func(count int, name string) (entries []ociimage.Entry) {
		for n := range count {
			entries = append(entries, file(fmt.Sprintf(name, n)))
		}
		return entries
	}
	for name, c := range map[string]struct {
		archive []byte
		legacy  bool
		want    string
	}{
		"nothing":                                 {nil, false, "not a gzip-compressed archive"},
		"nothing in legacy mode":                  {nil, true, "has 0 bytes"},
		"a Compose file in strict mode":           {[]byte(yaml), false, "not a gzip-compressed archive"},
		"half of an archive":                      {good[:len(good)/2], false, "cannot read archive"},
		"a wrong checksum":                        {append(bytes.Clone(good[:len(good)-8]), 1, 2, 3, 4, 5, 6, 7, 8), false, "cannot read archive"},
		"more after the archive":                  {append(bytes.Clone(good), "more"...), false, "cannot read archive"},
		"an empty archive":                        {archive(t), false, "exactly one top-level directory"},
		"files in the root":                       {archive(t, ok, file("README")), false, "exactly one top-level directory"},
		"a Compose file in the root":              {archive(t, file("compose.yaml")), false, "exactly one top-level directory"},
		"PKG-06 two directories":                  {archive(t, ok, dir("b")), false, "exactly one top-level directory"},
		"PKG-06 another name of the Compose file": {archive(t, file("app/compose.yml")), false, `no file "app/compose.yaml"`},
		"a Compose file that is a link":           {archive(t, file("app/x"), link("app/compose.yaml", "x")), false, `no file "app/compose.yaml"`},
		"no Compose file in legacy mode":          {archive(t, file("a/b/compose.yaml")), true, "no Compose file"},
		"PKG-08 an absolute name":                 {archive(t, ok, file("/app/x")), false, "is absolute"},
		"PKG-08 a name that climbs":               {archive(t, ok, file("app/../../x")), false, "contains .."},
		"a name that climbs and returns":          {archive(t, ok, file("app/a/../x")), false, "contains .."},
		"a name with control characters":          {archive(t, ok, file("app/\x1b[2J")), false, "unprintable"},
		"a long name":                             {archive(t, ok, file("app/"+strings.Repeat("xxxxxxx/", 130)+"x")), false, "the limit is 1024"},
		"a deep name":                             {archive(t, ok, file("app/"+strings.Repeat("a/", 32)+"x")), false, "more than 32 directories deep"},
		"a large file":                            {archive(t, ok, ociimage.Entry{Name: "app/x", Data: make([]byte, 64<<20+1)}), false, "the limit is 67108864"},
		"many entries":                            {archive(t, many(4097, "app/%d")...), false, "more than 4096 entries"},
		"many directories in between":             {archive(t, many(2000, "app/%d/1/x")...), false, "more than 4096 entries"},
		"a lot when expanded":                     {bytes.Repeat(expect.Value(ociimage.Gzip(make([]byte, 1<<20)))(t), 129), false, "expands to more than 134217728 bytes"},
		"a device":                                {archive(t, ok, ociimage.Entry{Name: "app/x", Type: tar.TypeBlock}), false, "is not a file"},
		"a FIFO":                                  {archive(t, ok, ociimage.Entry{Name: "app/x", Type: tar.TypeFifo}), false, "is not a file"},
		"a file twice":                            {archive(t, ok, ok), false, "duplicate entry"},
		"a directory twice":                       {archive(t, dir("app"), ok, dir("app")), false, "duplicate entry"},
		"a file where a directory was":            {archive(t, ok, file("app")), false, "duplicate entry"},
		"a link where a directory was":            {archive(t, ok, file("app/a/x"), link("app/a", "b")), false, "duplicate entry"},
		"a file under a file":                     {archive(t, ok, file("app/compose.yaml/x")), false, "not a directory"},
		"a file under a link":                     {archive(t, ok, link("app/l", "."), file("app/l/x")), false, "not a directory"},
		"a file under a link out":                 {archive(t, ok, link("app/l", "/etc"), file("app/l/passwd")), false, "not a directory"},
		"PKG-07 a link to an absolute path":       {archive(t, ok, link("app/l", "/etc/passwd")), false, "absolute path"},
		"PKG-07 a link out":                       {archive(t, ok, link("app/l", "../x")), false, "leads out"},
		"a link out and back":                     {archive(t, ok, link("app/l", "../app/compose.yaml")), false, "leads out"},
		"PKG-07 a link out through another":       {archive(t, ok, dir("app/a"), link("app/a/l", "../a"), link("app/m", "a/l/../../x")), false, "leads out"},
		"a link to itself":                        {archive(t, ok, link("app/l", "l")), false, "more than 40 links"},
		"links in a circle":                       {archive(t, ok, link("app/l", "m"), link("app/m", "l")), false, "more than 40 links"},
		"a link to nowhere":                       {archive(t, ok, link("app/l", "")), false, "empty"},
		"PKG-07 a hard link out":                  {archive(t, ok, hardLink("app/l", "../../etc/passwd")), false, "contains .."},
		"a hard link to an absolute path":         {archive(t, ok, hardLink("app/l", "/etc/passwd")), false, "is absolute"},
		"a hard link to a file to come":           {archive(t, ok, hardLink("app/l", "app/x"), file("app/x")), false, "not an earlier file"},
		"a hard link to a link":                   {archive(t, ok, link("app/m", "x"), hardLink("app/l", "app/m")), false, "not an earlier file"},
		"a hard link to a directory":              {archive(t, ok, dir("app/d"), hardLink("app/l", "app/d")), false, "not an earlier file"},
		"a hard link through a link":              {archive(t, ok, link("app/m", "."), hardLink("app/l", "app/m/compose.yaml")), false, "not an earlier file"},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			_, err := compose.Extract(c.archive, filepath.Join(base, "p1"), !c.legacy)
			expectInvalid(t, err, c.want)
			expect.Equal(t, listing(t, base), nil, "written")
		})
	}
}

// expectInvalid expects an error that is the package's, with a part in its text.
func expectInvalid(t testing.TB, err error, part string) {
	t.Helper()
	expect.ErrorWith(t, err, part, "the package")
	expect.Equal(t, fault.CodeOf(err), fault.InvalidPackage, "code of %v", err)
}

// entries are the names in a directory.
func entries(t testing.TB, dir string) (names []string) {
	t.Helper()
	all := expect.Value(os.ReadDir(dir))(t)
	for _, entry := range all {
		names = append(names, entry.Name())
	}
	return names
}

func TestExtractClearsAwayWhatAPowerCutLeft(t *testing.T) {
	base := t.TempDir()
	target := filepath.Join(base, "p1")
	expect.Check(t, os.MkdirAll(target+".partial/app/half", 0o755))
	expect.Check(t, expect.ErrorOf(compose.Extract(archive(t, file("app/compose.yaml")), target, true)))
	want := []string{"drwxr-xr-x p1", "drwxr-xr-x p1/app", "-rw-r--r-- p1/app/compose.yaml"}
	expect.Equal(t, listing(t, base), want, "directory")
}

func TestExtractBlamesTheDeviceForItsTroubles(t *testing.T) {
	occupied := filepath.Join(t.TempDir(), "file")
	expect.Check(t, os.WriteFile(occupied, nil, 0o600))
	_, err := compose.Extract(archive(t, file("app/compose.yaml")), filepath.Join(occupied, "p1"), true)
	expect.True(t, err != nil && fault.CodeOf(err) != fault.InvalidPackage, "error %v, want one that is not invalid", err)
}

// Whatever the bytes are: what is extracted lies in the directory, has no other
// sorts of entries than promised, and no link in it leads out.
func FuzzExtract(f *testing.F) {
	for _, seed := range [][]byte{
		[]byte(yaml),
		unpacked(f, dir("app/"), file("app/compose.yaml")),
		unpacked(f, file("app/compose.yaml"), file("app/a/x"), link("app/l", "a/x"), hardLink("app/h", "app/a/x")),
		unpacked(f, file("app/compose.yaml"), link("app/l", "../../x")),
		unpacked(f, file("app/compose.yaml"), link("app/l", "."), file("app/l/x")),
		unpacked(f, file("../x")),
		unpacked(f, ociimage.Entry{Name: "app/x", Type: tar.TypeFifo}),
	} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, unpacked []byte, strict bool) {
		base := t.TempDir()
		target := filepath.Join(base, "p1")
		extracted, err := compose.Extract(expect.Value(ociimage.Gzip(unpacked))(t), target, strict)
		left := listing(t, base)
		if err != nil {
			expect.Require(t, len(left) == 0, "refused with %v, but wrote %v", err, left)
			return
		}
		if info, err := os.Lstat(extracted.File); err != nil || !info.Mode().IsRegular() {
			t.Fatalf("Compose file %s: %v, %v", extracted.File, info, err)
		}
		for _, entry := range left {
			mode, name, _ := strings.Cut(entry, " ")
			switch mode {
			case "drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x":
			case "Lrwxrwxrwx":
				to, err := filepath.EvalSymlinks(filepath.Join(base, name))
				expect.True(t, err != nil || strings.HasPrefix(to, target), "link %s leads to %s", name, to)
			default:
				t.Errorf("extracted %s", entry)
			}
			expect.True(t, strings.HasPrefix(name, "p1"), "%s lies beside the directory", entry)
		}
	})
}
