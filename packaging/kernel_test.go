// Package packaging_test holds together what several systems need each for itself.
package packaging_test

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/kernel"
	"github.com/margolite/margolite/test/expect"
)

// Image builders take as files of their own what may be copied without the rest.
func TestCopiesAreTheSameEverywhere(t *testing.T) {
	for file, of := range map[string]string{
		"buildroot/kernel/margolite.config":                             "../runtime/kernel/margolite.cfg",
		"yocto/meta-margolite/recipes-kernel/linux/files/margolite.cfg": "../runtime/kernel/margolite.cfg",
		"buildroot/package/margolite/margolite.service":                 "margolite.service",
	} {
		if want := expect.Value(os.ReadFile(of))(t); !bytes.Equal(expect.Value(os.ReadFile(file))(t), want) {
			t.Errorf("%s differs from %s: copy it", file, of)
		}
	}
}

func TestBuildrootSwitchesOnWhatIsNeeded(t *testing.T) {
	mk := expect.Value(os.ReadFile("buildroot/package/margolite/margolite.mk"))(t)
	var want, got []string
	for _, o := range kernel.Options() {
		if !o.Extra {
			want = append(want, o.Name)
		}
	}
	for line := range strings.Lines(string(mk)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "$(call KCONFIG_ENABLE_OPT,"); ok {
			got = append(got, strings.TrimSuffix(name, ")"))
		}
	}
	expect.True(t, slices.Equal(got, want), "margolite.mk switches on\n%v\nwant\n%v", got, want)
}
