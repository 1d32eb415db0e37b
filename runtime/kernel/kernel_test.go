package kernel_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/kernel"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

func TestEveryOptionSaysWhatItIsFor(t *testing.T) {
	seen := map[string]bool{}
	for _, o := range kernel.Options() {
		expect.True(t, strings.HasPrefix(o.Name, "CONFIG_") && o.For != "" && !seen[o.Name], "option %+v", o)
		seen[o.Name] = true
	}
	for _, name := range []string{"CONFIG_NET_NS", "CONFIG_OVERLAY_FS", "CONFIG_NFT_MASQ", "CONFIG_MACVLAN"} {
		expect.Equal(t, seen[name], true, "%s is among them", name)
	}
}

func TestMissingOptionsAreNamed(t *testing.T) {
	var all strings.Builder
	for _, o := range kernel.Options() {
		if !o.Extra {
			all.WriteString(o.Name + "=m\n")
		}
	}
	for name, c := range map[string]struct {
		config  string
		missing []string
	}{
		"all of them":   {all.String(), nil},
		"not set":       {strings.Replace(all.String(), "CONFIG_VETH=m", "# CONFIG_VETH is not set", 1), []string{"CONFIG_VETH"}},
		"set to no":     {strings.Replace(all.String(), "CONFIG_VETH=m", "CONFIG_VETH=n", 1), []string{"CONFIG_VETH"}},
		"a longer name": {strings.Replace(all.String(), "CONFIG_NF_NAT=m", "CONFIG_NF_NAT_FTP=y", 1), []string{"CONFIG_NF_NAT"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, file := range []string{"proc/config.gz", "boot/config-" + release(t)} {
				root := t.TempDir()
				data := []byte(c.config)
				if strings.HasSuffix(file, ".gz") {
					data = compressed(t, data)
				}
				write(t, filepath.Join(root, file), data)
				said, missing, err := kernel.Missing(root)
				expect.Require(t, err == nil && said == "/"+file, "it looked at %q: %v", said, err)
				var names []string
				for _, o := range missing {
					names = append(names, o.Name)
				}
				expect.Equal(t, strings.Join(names, " "), strings.Join(c.missing, " "), "%s: missing", file)
			}
		})
	}
}

func TestWhatTellsNothingIsNoKernelWithoutOptions(t *testing.T) {
	if _, _, err := kernel.Missing(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no configuration: %v", err)
	}
	for name, data := range map[string][]byte{
		"no gzip":             []byte("CONFIG_NAMESPACES=y\n"),
		"cut off":             compressed(t, []byte("CONFIG_NAMESPACES=y\n"))[:15],
		"without end":         compressed(t, bytes.Repeat([]byte("#\n"), 4<<20)),
		"a line without end":  compressed(t, bytes.Repeat([]byte("#"), 1<<20)),
		"nothing, not even z": nil,
	} {
		root := t.TempDir()
		write(t, filepath.Join(root, "proc/config.gz"), data)
		if _, missing, err := kernel.Missing(root); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: missing are %v, error %v", name, missing, err)
		}
	}
}

func FuzzMissing(f *testing.F) {
	f.Add([]byte("CONFIG_NAMESPACES=y\n# CONFIG_VETH is not set\nCONFIG_CMDLINE=\"a=b\"\n"))
	f.Add([]byte("=\n=y\nCONFIG_\x00=m"))
	f.Add(bytes.Repeat([]byte("x"), 70000)) // longer than a line may be
	root := f.TempDir()
	f.Fuzz(func(t *testing.T, config []byte) {
		write(t, filepath.Join(root, "boot/config-"+release(t)), config)
		_, missing, err := kernel.Missing(root)
		if err == nil && !bytes.Contains(config, []byte("CONFIG_VETH=")) && len(missing) == 0 {
			t.Error("nothing is missing in what does not name it")
		}
	})
}

func release(t *testing.T) string {
	t.Helper()
	var name unix.Utsname
	expect.Check(t, unix.Uname(&name))
	return unix.ByteSliceToString(name.Release[:])
}

func compressed(t *testing.T, data []byte) []byte {
	t.Helper()
	return expect.Value(ociimage.Gzip(data))(t)
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	expect.Check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	expect.Check(t, os.WriteFile(path, data, 0o600))
}
