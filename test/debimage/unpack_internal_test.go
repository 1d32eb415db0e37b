package debimage

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// pack makes a package of files: path to content.
func pack(t *testing.T, name string, files map[string]string) string {
	dir := t.TempDir()
	files["DEBIAN/control"] = "Package: " + name + "\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.com>\nDescription: x\n"
	for path, content := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), name+".deb")
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", dir, file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

func TestPackagesBecomeOneLayer(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is not installed")
	}
	debs := []string{
		pack(t, "one", map[string]string{"usr/bin/one": "1", "usr/share/doc/one/copyright": "x"}),
		pack(t, "two", map[string]string{"usr/bin/two": "2", "lib/systemd/system/two.service": "x"}),
	}
	var layer, again bytes.Buffer
	for _, out := range []*bytes.Buffer{&layer, &again} {
		if err := unpack(t.Context(), out, debs); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(layer.Bytes(), again.Bytes()) {
		t.Error("the same packages gave two layers")
	}
	var names []string
	for archive := tar.NewReader(&layer); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	want := []string{"usr/", "usr/bin/", "usr/bin/one", "usr/share/", "lib/", "usr/bin/two"}
	if !slices.Equal(names, want) {
		t.Errorf("the layer has %q, want %q", names, want)
	}
}

func TestSomethingThatIsNoPackageIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.deb")
	if err := os.WriteFile(file, []byte("not a package"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unpack(t.Context(), io.Discard, []string{file}); err == nil {
		t.Error("it was unpacked")
	}
}
