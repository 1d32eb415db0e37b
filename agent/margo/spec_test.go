package margo_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
	if !slices.Contains(requirements(err), requirement) {
		t.Errorf("got %v, want it to cite %q", err, requirement)
	}
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
	const accepted = ""
	type reader struct {
		mode string
		read func([]byte) error
	}
	var (
		manifest     = reader{"state manifest", refusal(margo.ParseStateManifest)}
		deployment   = reader{"deployment of any revision", refusal(margo.ParseDeployment)}
		status       = reader{"status of rc.3", refusal(margo.ParseStatus)}
		capabilities = reader{"capabilities of rc.3", refusal(margo.ParseCapabilities)}
		discovery    = reader{"discovery document", refusal(margo.ParseDiscoveryDocument)}
	)
	// Which rule a reader refuses the document by, or accepted. Documents of
	// revisions before rc.3 that no reader is for are refused by the strict ones.
	table := map[string]map[*reader]string{
		"valid/ApplicationDeployment-001.yaml":                               {&deployment: accepted},
		"valid/ApplicationDeployment-compose.yaml":                           {&deployment: accepted},
		"valid/ApplicationDeployment-helm.yaml":                              {&deployment: accepted},
		"valid/DesiredState-001.yaml":                                        {&deployment: accepted},
		"valid/DesiredState-002.yaml":                                        {&deployment: accepted},
		"valid/gateway-autonomous.yaml":                                      {&deployment: accepted},
		"valid/gateway-directed.yaml":                                        {&deployment: accepted},
		"valid/older/DesiredState-001.yaml":                                  {&deployment: accepted},
		"valid/older/DesiredState-002.yaml":                                  {&deployment: accepted},
		"invalid/ApplicationDeployment-001.yaml":                             {&deployment: "A-12"},
		"invalid/ApplicationDeployment-002.yaml":                             {&deployment: "A-60"},
		"invalid/ApplicationDeployment-003.yaml":                             {&deployment: "A-60"},
		"invalid/ApplicationDeployment-004.yaml":                             {&deployment: accepted},
		"invalid/model/ApplicationDeployment-003.yaml":                       {&deployment: "A-60"},
		"invalid/constructed/ApplicationDeployment-v-prefixed-revision.yaml": {&deployment: "AD-04"},
		"invalid/constructed/ApplicationDeployment-http-repository.yaml":     {&deployment: "AD-04"},
		"invalid/constructed/ApplicationDeployment-no-device-id.yaml":        {&deployment: accepted},
		"invalid/constructed/ApplicationDeployment-bad-timeout.yaml":         {&deployment: accepted},

		"valid/DesiredStateManifest-001.json":                                        {&manifest: accepted},
		"valid/constructed/DesiredStateManifest-rc3-two-deployments.json":            {&manifest: accepted},
		"valid/constructed/DesiredStateManifest-rc2-two-deployments.json":            {&manifest: accepted},
		"valid/constructed/DesiredStateManifest-empty.json":                          {&manifest: accepted},
		"valid/constructed/DesiredStateManifest-max-version.json":                    {&manifest: accepted},
		"invalid/DesiredStateManifest-001.json":                                      {&manifest: "A-23"},
		"invalid/DesiredStateManifest-002.json":                                      {&manifest: "A-60"},
		"invalid/DesiredStateManifest-003.json":                                      {&manifest: "DS-23"},
		"invalid/DesiredStateManifest-004.json":                                      {&manifest: "A-09"},
		"invalid/constructed/DesiredStateManifest-uppercase-digest.json":             {&manifest: "DS-23"},
		"invalid/constructed/DesiredStateManifest-unsupported-algorithm.json":        {&manifest: "DS-11"},
		"invalid/constructed/DesiredStateManifest-version-overflow.json":             {&manifest: "A-23"},
		"invalid/constructed/DesiredStateManifest-null-bundle-with-deployments.json": {&manifest: "A-09"},
		"invalid/constructed/DesiredStateManifest-duplicate-id.json":                 {&manifest: "DS-17"},

		"valid/from-text/DeploymentStatusManifest-pending.json":                {&status: accepted},
		"valid/from-text/DeploymentStatusManifest-installed.json":              {&status: accepted},
		"valid/DeploymentStatusManifest-001.json":                              {&status: "ST-12"}, // rc.2
		"invalid/DeploymentStatusManifest-001.json":                            {&status: "ST-18"},
		"invalid/DeploymentStatusManifest-002.json":                            {&status: "ST-03"},
		"invalid/DeploymentStatusManifest-003.json":                            {&status: "A-60"},
		"invalid/constructed/DeploymentStatusManifest-no-adopted-version.json": {&status: "ST-12"},

		"valid/from-text/DeviceCapabilitiesManifest-hosting.json":            {&capabilities: accepted},
		"valid/from-text/DeviceCapabilitiesManifest-gateway-nonhosting.json": {&capabilities: accepted},
		"valid/from-text/DeviceCapabilitiesManifest-gateway-hosting.json":    {&capabilities: accepted},
		"valid/from-text/DeviceCapabilitiesManifest-child.json":              {&capabilities: accepted},
		"valid/from-text/DeviceCapabilitiesManifest-child-deep.json":         {&capabilities: accepted},
		"valid/from-text/DeviceCapabilitiesManifest-custom.json":             {&capabilities: "CAP-13"}, // apiVersion and kind
		"valid/DeviceCapabilitiesManifest-001.json":                          {&capabilities: "CAP-13"}, // rc.1
		"valid/DeviceCapabilitiesManifest-002.json":                          {&capabilities: "CAP-13"}, // rc.1
		"valid/model/DeviceCapabilitiesManifest-001.json":                    {&capabilities: "CAP-13"}, // rc.1
		"invalid/DeviceCapabilitiesManifest-001.json":                        {&capabilities: "CAP-13"},
		"invalid/DeviceCapabilitiesManifest-002.json":                        {&capabilities: "CAP-13"},
		"invalid/DeviceCapabilitiesManifest-003.json":                        {&capabilities: "CAP-13"},
		"invalid/DeviceCapabilitiesManifest-004.json":                        {&capabilities: "CAP-13"},
		"invalid/older/DeviceCapabilitiesManifest-002.json":                  {&capabilities: "CAP-13"},
		"invalid/model/DeviceCapabilitiesManifest-001.json":                  {&capabilities: "CAP-13"},
		"invalid/model/DeviceCapabilitiesManifest-002.json":                  {&capabilities: "CAP-02"},
		"invalid/model/DeviceCapabilitiesManifest-003.json":                  {&capabilities: "CAP-13"},

		"valid/from-text/DiscoveryDocument.json": {&discovery: accepted},

		// Not documents of this package.
		"index.md": nil,
		"valid/constructed/bundle-two-deployments.tar.gz": nil,
		"valid/from-text/OnboardingRequest.json":          nil,

		// No reader refuses an error answer.
		"valid/ProblemDetail-001.yaml":                                   nil,
		"valid/from-text/ProblemDetail-rate-limit.json":                  nil,
		"valid/from-text/ProblemDetail-spiffe-bundle-not-found.json":     nil,
		"valid/from-text/ProblemDetail-client-relationship-retired.json": nil,
		"invalid/ProblemDetail-001.yaml":                                 nil,
	}

	err := filepath.WalkDir(specDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(specDir, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		row, ok := table[name]
		if !ok {
			t.Errorf("document %s has no row in the table", name)
			return nil
		}
		delete(table, name)
		for reader, want := range row {
			t.Run(name+" as "+reader.mode, func(t *testing.T) {
				err := reader.read(document(t, name))
				if want == accepted {
					if err != nil {
						t.Fatalf("refused: %v", err)
					}
					return
				}
				if !slices.Contains(requirements(err), want) {
					t.Fatalf("got %v, want it refused by %s", err, want)
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
