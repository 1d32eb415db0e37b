package margo_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
)

// specDir holds the documents of the specification; its index.md tells what
// each of them shows.
const specDir = "../../test/testdata/spec"

// document reads one document of the specification.
func document(tb testing.TB, name string) []byte {
	tb.Helper()
	return expect.Value(os.ReadFile(filepath.Join(specDir, filepath.FromSlash(name))))(tb)
}

// requirements are the rules that a refusal cites.
func requirements(err error) []string {
	var errs margo.Errors
	if !errors.As(err, &errs) {
		return nil
	}
	ids := make([]string, 0, len(errs))
	for _, e := range errs {
		ids = append(ids, e.Requirement)
	}
	return ids
}

// cites expects an error that cites a rule; "": one about the form of the document.
func cites(t *testing.T, err error, requirement string) {
	t.Helper()
	expect.True(t, slices.Contains(requirements(err), requirement), "got %v, want it to cite %q", err, requirement)
}

// same reports how two values differ.
func same(t *testing.T, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Error(diff)
	}
}

// refusal is the error of a parser.
func refusal[T any](parse func([]byte) (T, error)) func([]byte) error {
	return func(body []byte) error {
		_, err := parse(body)
		return err
	}
}

func TestEveryDocumentOfTheSpecificationIsAcceptedOrRefusedAsItsIndexSays(t *testing.T) {
	// Other files hold no documents of this package, or such as no reader refuses.
	readers := map[string]func([]byte) error{
		"ApplicationDeployment-":      refusal(margo.ParseDeployment),
		"DesiredState-":               refusal(margo.ParseDeployment),
		"gateway-":                    refusal(margo.ParseDeployment),
		"DesiredStateManifest-":       refusal(margo.ParseStateManifest),
		"DeploymentStatusManifest-":   refusal(margo.ParseStatus),
		"DeviceCapabilitiesManifest-": refusal(margo.ParseCapabilities),
		"DiscoveryDocument":           refusal(margo.ParseDiscoveryDocument),
	}
	const accepted = ""
	// Which rule a document is refused by. Valid ones that are not named are accepted.
	table := map[string]string{
		"invalid/ApplicationDeployment-001.yaml":                                     "A-12",
		"invalid/ApplicationDeployment-002.yaml":                                     "A-60",
		"invalid/ApplicationDeployment-003.yaml":                                     "A-60",
		"invalid/ApplicationDeployment-004.yaml":                                     accepted,
		"invalid/model/ApplicationDeployment-003.yaml":                               "A-60",
		"invalid/constructed/ApplicationDeployment-v-prefixed-revision.yaml":         "AD-04",
		"invalid/constructed/ApplicationDeployment-http-repository.yaml":             "AD-04",
		"invalid/constructed/ApplicationDeployment-no-device-id.yaml":                accepted,
		"invalid/constructed/ApplicationDeployment-bad-timeout.yaml":                 accepted,
		"invalid/DesiredStateManifest-001.json":                                      "A-23",
		"invalid/DesiredStateManifest-002.json":                                      "A-60",
		"invalid/DesiredStateManifest-003.json":                                      "DS-23",
		"invalid/DesiredStateManifest-004.json":                                      "A-09",
		"invalid/constructed/DesiredStateManifest-uppercase-digest.json":             "DS-23",
		"invalid/constructed/DesiredStateManifest-unsupported-algorithm.json":        "DS-11",
		"invalid/constructed/DesiredStateManifest-version-overflow.json":             "A-23",
		"invalid/constructed/DesiredStateManifest-null-bundle-with-deployments.json": "A-09",
		"invalid/constructed/DesiredStateManifest-duplicate-id.json":                 "DS-17",
		"valid/DeploymentStatusManifest-001.json":                                    "ST-12", // rc.2
		"invalid/DeploymentStatusManifest-001.json":                                  "ST-18",
		"invalid/DeploymentStatusManifest-002.json":                                  "ST-03",
		"invalid/DeploymentStatusManifest-003.json":                                  "A-60",
		"invalid/constructed/DeploymentStatusManifest-no-adopted-version.json":       "ST-12",
		"valid/from-text/DeviceCapabilitiesManifest-custom.json":                     "CAP-13", // apiVersion and kind
		"valid/DeviceCapabilitiesManifest-001.json":                                  "CAP-13", // rc.1
		"valid/DeviceCapabilitiesManifest-002.json":                                  "CAP-13", // rc.1
		"valid/model/DeviceCapabilitiesManifest-001.json":                            "CAP-13", // rc.1
		"invalid/DeviceCapabilitiesManifest-001.json":                                "CAP-13",
		"invalid/DeviceCapabilitiesManifest-002.json":                                "CAP-13",
		"invalid/DeviceCapabilitiesManifest-003.json":                                "CAP-13",
		"invalid/DeviceCapabilitiesManifest-004.json":                                "CAP-13",
		"invalid/older/DeviceCapabilitiesManifest-002.json":                          "CAP-13",
		"invalid/model/DeviceCapabilitiesManifest-001.json":                          "CAP-13",
		"invalid/model/DeviceCapabilitiesManifest-002.json":                          "CAP-02",
		"invalid/model/DeviceCapabilitiesManifest-003.json":                          "CAP-13",
	}

	err := filepath.WalkDir(specDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name := filepath.ToSlash(expect.Value(filepath.Rel(specDir, path))(t))
		rule, named := table[name]
		delete(table, name)
		for prefix, read := range readers {
			if !strings.HasPrefix(entry.Name(), prefix) {
				continue
			}
			t.Run(name, func(t *testing.T) {
				err := read(document(t, name))
				switch {
				case !named && !strings.HasPrefix(name, "valid/"):
					t.Error("it has no row in the table")
				case rule == accepted:
					expect.OK(t, err)
				default:
					cites(t, err, rule)
				}
			})
		}
		return nil
	})
	check(t, err)
	for name := range table {
		t.Errorf("row %s has no document", name)
	}
}

var check = expect.Check
