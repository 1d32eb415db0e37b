package compose

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/schema"
	"github.com/compose-spec/compose-go/v2/tree"

	"github.com/margolite/margolite/test/expect"
)

// asOne are attributes that this runtime passes over or refuses whatever is in
// them, or whose content is said with them.
var asOne = []string{
	"models", "jobs", "services.build", "services.develop", "services.provider", "services.models", "services.pre_start",
	"services.credential_spec", "services.storage_opt", "services.post_start", "services.pre_stop",
	"deploy.update_config", "deploy.rollback_config", "deploy.placement", "deploy.resources.reservations.generic_resources",
	"networks.external", "volumes.external", "configs.external", "secrets.external",
}

// notByKey are attributes of which it is refused not that they are there, but
// what they say.
var notByKey = []string{"version"} // ignored, with a warning of its own

// attributes are those of the specification that compose-go has inside, as
// <section>.<attribute>, with the section deploy in the place of services.deploy.
func attributes(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, path := range schema.AttributePaths() {
		names := slices.DeleteFunc(path.Parts(), func(name string) bool { return name == tree.PathMatchAll || name == tree.PathMatchList })
		if len(names) > 1 && names[1] == "deploy" {
			names = names[1:]
		}
		at := strings.Join(names, ".")
		if !slices.ContainsFunc(asOne, func(whole string) bool { return strings.HasPrefix(at, whole+".") }) {
			all = append(all, at)
		}
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) < 200 {
		t.Fatalf("the schema has %d attributes; is it read as it should be?", len(all))
	}
	return all
}

// row is one of the tables of runtime/README.md.
type row struct{ attribute, here, meaning, test string }

func rows(t *testing.T) map[string]row {
	t.Helper()
	text := expect.Value(os.ReadFile("../README.md"))(t)
	all := map[string]row{}
	cells := regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\|(.*)\\|(.*)\\|(.*)\\|$")
	for _, m := range cells.FindAllStringSubmatch(string(text), -1) {
		r := row{m[1], strings.TrimSpace(m[2]), strings.TrimSpace(m[3]), strings.Trim(m[4], " `")}
		if _, twice := all[r.attribute]; twice {
			t.Errorf("%s has two rows", r.attribute)
		}
		all[r.attribute] = r
	}
	return all
}

func TestREADMEHasEveryAttributeOfTheSpecification(t *testing.T) {
	documented := rows(t)
	for _, attribute := range attributes(t) {
		r, ok := documented[attribute]
		delete(documented, attribute)
		switch {
		case !ok:
			t.Errorf("%s has no row", attribute)
			continue
		case !slices.Contains([]string{"works", "ignored", "refused"}, r.here):
			t.Errorf("%s is %q, not works, ignored or refused", attribute, r.here)
		case r.meaning == "" || r.test == "":
			t.Errorf("the row of %s has an empty cell", attribute)
		case !testExists(t, r.test):
			t.Errorf("the test %s of %s is not in the tree", r.test, attribute)
		case r.here == "works" && !strings.HasPrefix(r.test, scenarioTest) && attribute != "name":
			t.Errorf("%s works, and its test %s is not one with containers", attribute, r.test)
		}
		if here := byKey(attribute); here != r.here && !slices.Contains(notByKey, attribute) {
			t.Errorf("%s is said to be %q, and is %q", attribute, r.here, here)
		}
	}
	for attribute := range documented {
		t.Errorf("%s has a row, and is not in the specification", attribute)
	}
}

// byKey is what checkKeys makes of an attribute: what the rule for it, or for one around it, says.
func byKey(attribute string) string {
	if strings.HasPrefix(attribute+".", "deploy.") {
		attribute = "services." + attribute
	}
	rules := rulesByAttribute()
	for at := attribute; at != ""; at = at[:max(0, strings.LastIndexByte(at, '.'))] {
		switch rules[at].kind {
		case refused:
			return "refused"
		case ignored:
			return "ignored"
		}
	}
	return "works"
}

const scenarioTest = "TestAttributes/"

// testExists looks for a test with containers by its Compose file, and for every
// other one by its function.
func testExists(t *testing.T, name string) bool {
	t.Helper()
	scenario, is := strings.CutPrefix(name, scenarioTest)
	if !is {
		return functionExists(t, name)
	}
	dir := filepath.Join("..", "..", "test", "compose", "testdata", "attributes")
	entries := expect.Value(os.ReadDir(dir))(t)
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		rest, ok := strings.CutPrefix(e.Name(), scenario)
		return ok && (rest == "" || strings.ContainsAny(rest[:1], ".-"))
	})
}

func functionExists(t *testing.T, name string) bool {
	t.Helper()
	files := expect.Value(filepath.Glob("*_test.go"))(t)
	for _, file := range files {
		content := expect.Value(os.ReadFile(file))(t)
		if strings.Contains(string(content), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
