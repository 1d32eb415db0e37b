package container

import (
	"encoding/json"
	"runtime"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Whatever a container may do, its filter is the one that containerd gives it.
func TestDefaultSeccompProfileIsThatOfContainerd(t *testing.T) {
	all := capabilityNames
	sets := [][]string{nil, all, all[:len(all)/2], all[len(all)/2:]}
	for _, one := range all {
		sets = append(sets, []string{one}, slices.DeleteFunc(slices.Clone(all), func(c string) bool { return c == one }))
	}
	for _, set := range sets {
		got, err := seccompProfile([]byte(defaultProfile), set, runtime.GOARCH, Release{6, 1})
		if err != nil {
			t.Fatal(err)
		}
		expected := seccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: set}}})
		if diff := cmp.Diff(said(t, expected), said(t, got)); diff != "" {
			t.Errorf("with %q (-containerd +ours):\n%s", set, diff)
		}
	}
}

// said is what a filter says, in an order of their own: it has none.
func said(t *testing.T, filter *specs.LinuxSeccomp) []string {
	t.Helper()
	say := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var all []string
	for _, architecture := range filter.Architectures {
		all = append(all, say(architecture))
	}
	for _, call := range filter.Syscalls {
		all = append(all, say(call))
	}
	slices.Sort(all)
	rest := *filter
	rest.Architectures, rest.Syscalls = nil, nil
	return append(all, say(rest))
}
