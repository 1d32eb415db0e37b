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

// There is one list of options, and image builders take it as a file of theirs.
func TestFragmentsAreTheOneList(t *testing.T) {
	for _, file := range []string{
		"buildroot/kernel/margolite.config",
		"yocto/meta-margolite/recipes-kernel/linux/files/margolite.cfg",
	} {
		got, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		} else if string(got) != kernel.Fragment {
			t.Errorf("%s differs from runtime/kernel/margolite.cfg: copy it", file)
		}
	}
}

func TestBuildrootSwitchesOnWhatIsNeeded(t *testing.T) {
	mk, err := os.ReadFile("buildroot/package/margolite/margolite.mk")
	expect.Check(t, err)
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

// The external tree of Buildroot may be copied without the rest.
func TestTheUnitIsTheSameEverywhere(t *testing.T) {
	want, err := os.ReadFile("margolite.service")
	expect.Check(t, err)
	got, err := os.ReadFile("buildroot/package/margolite/margolite.service")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("buildroot/package/margolite/margolite.service differs from margolite.service: copy it (%v)", err)
	}
}
