package packaging_test

import (
	"crypto/md5"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// Image builders refuse a license that is not the one that a recipe was written for.
func TestRecipesKnowTheLicense(t *testing.T) {
	license := expect.Value(os.ReadFile("../LICENSE"))(t)
	for file, want := range map[string]string{
		"buildroot/package/margolite/margolite.hash":                        fmt.Sprintf("sha256  %x  LICENSE\n", sha256.Sum256(license)),
		"yocto/meta-margolite/recipes-margolite/margolite/margolite_git.bb": fmt.Sprintf("file://LICENSE;md5=%x\"", md5.Sum(license)),
	} {
		expect.Contains(t, string(expect.Value(os.ReadFile(file))(t)), want, "%s", file)
	}
}

// Functions of recipes are shell; BitBake replaces ${...} before the shell sees it.
func TestFunctionsOfRecipesInstallWhatIsThere(t *testing.T) {
	recipe := expect.Value(os.ReadFile("yocto/meta-margolite/recipes-margolite/margolite/margolite_git.bb"))(t)
	found := 0
	for word := range strings.FieldsSeq(string(recipe)) {
		if path, ok := strings.CutPrefix(word, "${S}/"); ok {
			found++
			expect.OK(t, expect.ErrorOf(os.Stat("../"+path)))
		}
	}
	expect.True(t, found >= 4, "the recipe installs %d files of the sources", found)
}
