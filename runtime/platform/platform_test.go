package platform_test

import (
	"runtime"
	"slices"
	"testing"

	"github.com/containerd/platforms"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/platform"
)

// names are as files, images and indexes have them.
var names = []string{
	"linux/amd64", "linux/amd64/v1", "linux/amd64/v2", "linux/amd64/v3", "linux/x86_64", "linux/386", "linux/i386",
	"linux/arm", "linux/arm/v4", "linux/arm/v5", "linux/arm/v6", "linux/arm/6", "linux/arm/v7", "linux/arm/7", "linux/arm/v8", "linux/arm/8",
	"linux/armhf", "linux/armel",
	"linux/arm64", "linux/arm64/v8", "linux/arm64/8", "linux/arm64/v8.0", "linux/arm64/v8.2", "linux/arm64/v8.5", "linux/arm64/v8.6",
	"linux/arm64/v8.9", "linux/arm64/v9", "linux/arm64/9", "linux/arm64/9.0", "linux/arm64/v9.0", "linux/arm64/v9.2", "linux/arm64/v9.7", "linux/aarch64",
	"linux/riscv64", "linux/s390x", "linux/ppc64le", "linux/mips64le", "linux/loong64", "linux/z80", "LINUX/AMD64", "linux/ARM/V6",
	"windows/amd64", "freebsd/arm64",
	"amd64", "arm", "arm64", "armhf", "x86-64", "riscv64", "AMD64",
}

func TestNamesAreReadAsContainerdReadsThem(t *testing.T) {
	for _, name := range slices.Concat(names, []string{
		"linux", "Linux", "", "/", "linux/", "linux//v7", "linux/arm/", "a/b/c/d", "not a platform!", "linux/a b", "*", "linux/*", "z80", "plan10",
		"linux/arm\n", "linux/ärm",
	}) {
		want, wantErr := platforms.Parse(name)
		got, err := platform.Parse(name)
		if (err == nil) != (wantErr == nil) {
			t.Errorf("%q: %v, want %v", name, err, wantErr)
		}
		if err == nil && got.String() != platforms.Format(platforms.Normalize(want)) {
			t.Errorf("%q is %s, want %s", name, got, platforms.Format(platforms.Normalize(want)))
		}
	}
}

func TestMachinesRunWhatContainerdSays(t *testing.T) {
	for _, machine := range names {
		p, err := platform.Parse(machine)
		if err != nil {
			t.Fatal(err)
		}
		runs, judge := p.Runs(), platforms.Only(platforms.MustParse(machine))
		rank := func(d v1.Platform) int { return slices.Index(runs, platform.Of(d)) }
		for _, one := range names {
			described := platforms.MustParse(one)
			if got, want := rank(described) >= 0, judge.Match(described); got != want {
				t.Errorf("%s runs %s: %v, want %v", machine, one, got, want)
				continue
			}
			for _, other := range names {
				second := platforms.MustParse(other)
				if rank(described) < 0 || rank(second) < 0 {
					continue
				}
				if got, want := rank(described) < rank(second), judge.Less(described, second); got != want {
					t.Errorf("for %s %s is better than %s: %v, want %v", machine, one, other, got, want)
				}
			}
		}
	}
}

func TestHostIsWhatContainerdSays(t *testing.T) {
	if got, want := platform.Host(), platforms.Normalize(platforms.DefaultSpec()); got != platform.Of(want) {
		t.Errorf("got %s, want %s", got, platforms.Format(want))
	}
	if got := platform.Host(); got.OS != runtime.GOOS || got.Architecture != runtime.GOARCH {
		t.Errorf("got %s", got)
	}
}

func TestDescriptionsAreWrittenAsTheyAre(t *testing.T) {
	for _, d := range []v1.Platform{
		{},
		{Architecture: "arm"},
		{OS: "linux", Architecture: "arm64", Variant: "v8"},
		{OS: "unknown", Architecture: "unknown"},
	} {
		if got, want := platform.Format(d), platforms.Format(d); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range names {
		f.Add(name)
	}
	f.Add("linux/arm/v99999999999")
	f.Add("../../..")
	f.Fuzz(func(t *testing.T, name string) {
		p, err := platform.Parse(name)
		if err != nil {
			return
		}
		if again, err := platform.Parse(p.String()); err != nil || again != p {
			t.Errorf("%q is %s, and that is %s, %v", name, p, again, err)
		}
		if runs := p.Runs(); runs[0] != p || len(runs) > 40 {
			t.Errorf("a machine of %q runs %v", name, runs)
		}
	})
}
