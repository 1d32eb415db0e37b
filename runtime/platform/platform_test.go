package platform_test

import (
	"testing"

	"github.com/containerd/platforms"

	"github.com/margolite/margolite/runtime/platform"
	"github.com/margolite/margolite/test/expect"
)

func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"linux/amd64": "linux/amd64", "linux/x86_64": "linux/amd64", "LINUX/AMD64/v2": "linux/amd64/v2", "amd64": "linux/amd64",
		"linux/arm": "linux/arm/v7", "linux/arm/6": "linux/arm/v6", "linux/armhf": "linux/arm/v7", "linux/armel": "linux/arm/v6",
		"linux/arm64": "linux/arm64", "linux/arm64/v8": "linux/arm64", "linux/aarch64": "linux/arm64", "linux/arm64/v8.2": "linux/arm64/v8.2",
		"windows/amd64": "windows/amd64", "linux/z80": "linux/z80",
	} {
		expect.Equal(t, platforms.Format(expect.Value(platform.Parse(name))(t)), want, "%q", name)
	}
	for _, name := range []string{
		"", "/", "linux/", "linux//v7", "linux/arm/", "a/b/c/d", "not a platform!", "linux/a b", "*", "linux/*", "z80", "linux/arm\n", "linux/ärm",
		"linux/amd64/v99999999", "linux/arm/v99999999", "linux(6.1)/amd64", "linux(+sse)/amd64",
	} {
		expect.ErrorWith(t, expect.ErrorOf(platform.Parse(name)), "", "%q", name)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("linux/arm/v7")
	f.Add("linux/arm/v99999999999")
	f.Add("windows(10.0+win32k)/amd64")
	f.Add("../../..")
	f.Fuzz(func(t *testing.T, name string) {
		p, err := platform.Parse(name)
		if err != nil {
			return
		}
		text := platforms.Format(p)
		expect.Equal(t, platforms.Format(expect.Value(platform.Parse(text))(t)), text, "%q, read again", name)
		expect.Equal(t, platforms.Only(p).Match(p), true, "a machine of %q runs what is for it", name)
	})
}
