package margo_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
)

// deploymentWith is a deployment document of rc.3 with two components, changed
// by replacing one piece of its text by another.
func deploymentWith(tb testing.TB, changes ...string) []byte {
	tb.Helper()
	const document = `id: ad9b614e-8912-45f4-a523-372358765def
metadata:
  name: digitron
  namespace: margo-poc
  deviceId: edge-01
spec:
  applicationId: com-northstartida-digitron
  deploymentProfile:
    type: compose
    components:
      - name: database
        properties: {repository: "oci://registry.example/db", revision: 1.0.9}
      - name: web
        properties: {repository: "oci://registry.example/web", revision: 2.0.0-rc.1_b7, wait: false, timeout: 8m30s}
  parameters:
    user:
      value: Some One
      targets:
        - {pointer: USER_NAME, components: [database, web]}
`
	text := document
	for i := 0; i+1 < len(changes); i += 2 {
		if !strings.Contains(text, changes[i]) {
			tb.Fatalf("document does not contain %q", changes[i])
		}
		text = strings.Replace(text, changes[i], changes[i+1], 1)
	}
	return []byte(text)
}

// ignoreValues leaves parameter values, which hide themselves, out of a comparison.
var ignoreValues = cmpopts.IgnoreUnexported(margo.Value{})

func TestAD04AD06DeploymentOfRC3IsReadAsWritten(t *testing.T) {
	got := expect.Value(margo.ParseDeployment(deploymentWith(t)))(t)
	want := &margo.Deployment{
		ID:            idB,
		Name:          "digitron",
		DeviceID:      "edge-01",
		ApplicationID: "com-northstartida-digitron",
		Type:          margo.Compose,
		Components: []margo.Component{
			{Name: "database", Repository: "oci://registry.example/db", Revision: "1.0.9", Wait: true},
			{
				Name: "web", Repository: "oci://registry.example/web", Revision: "2.0.0-rc.1_b7",
				Timeout: 8*time.Minute + 30*time.Second,
			},
		},
		Parameters: []margo.Parameter{{
			Name:    "user",
			Targets: []margo.Target{{Pointer: "USER_NAME", Components: []string{"database", "web"}}},
		}},
	}
	same(t, want, got, ignoreValues)
}

func TestDeploymentOfEarlierRevisionsMeansTheSame(t *testing.T) {
	components := []margo.Component{
		{
			Name: "database-services", Repository: "oci://quay.io/charts/realtime-database-services",
			Revision: "2.3.7", Wait: true, Timeout: 8*time.Minute + 30*time.Second,
		},
		{
			Name: "digitron-orchestrator", Repository: "oci://northstarida.azurecr.io/charts/northstarida-digitron-orchestrator",
			Revision: "1.0.9", Wait: true,
		},
	}
	helm := margo.Deployment{
		ID: idA, Name: "com-northstartida-digitron-orchestrator-deployment",
		ApplicationID: "com-northstartida-digitron-orchestrator", Type: margo.Helm, Components: components,
	}
	compose := margo.Deployment{
		ID: idB, Name: helm.Name, ApplicationID: helm.ApplicationID, Type: margo.Compose,
		Components: []margo.Component{{
			Name:            "digitron-orchestrator-docker",
			PackageLocation: "https://northsitarida.com/digitron/docker/digitron-orchestrator.tar.gz",
			KeyLocation:     "https://northsitarida.com/digitron/docker/public-key.asc",
			Wait:            true,
		}},
	}
	for name, want := range map[string]margo.Deployment{
		"valid/ApplicationDeployment-001.yaml":     helm,
		"valid/ApplicationDeployment-helm.yaml":    helm,
		"valid/older/DesiredState-001.yaml":        helm,
		"valid/ApplicationDeployment-compose.yaml": compose,
		"valid/older/DesiredState-002.yaml":        compose,
	} {
		t.Run(name, func(t *testing.T) {
			got := expect.Value(margo.ParseDeployment(document(t, name)))(t)
			same(t, &want, got, cmpopts.IgnoreFields(margo.Deployment{}, "Parameters"))
			expect.True(t, len(got.Parameters) != 0, "parameters are missing")
		})
	}
}

// The form of the Symphony-based WFM of the Margo sandbox.
func TestADeploymentOfTheSandboxIsRead(t *testing.T) {
	const document = `apiVersion: application.margo.org/v1alpha1
kind: ApplicationDeploymentManifest
metadata:
  id: 4c383af1-4125-49f8-8c60-467996bb9c2f
  name: hello-env
spec:
  deploymentProfile:
    components:
    - name: hello-stack
      properties:
        packageLocation: http://registry.example/compose.yaml
    type: compose
  parameters:
    greeting:
      targets:
      - components: [hello-stack]
        pointer: ENV.GREETING
      value: servus
`
	got := expect.Value(margo.ParseDeployment([]byte(document)))(t)
	want := &margo.Deployment{
		ID: "4c383af1-4125-49f8-8c60-467996bb9c2f", Name: "hello-env", Type: margo.Compose, Sandbox: true,
		Components: []margo.Component{{Name: "hello-stack", PackageLocation: "http://registry.example/compose.yaml", Wait: true}},
	}
	same(t, want, got, cmpopts.IgnoreFields(margo.Deployment{}, "Parameters"))
	settings, warnings, err := got.Settings("hello-stack")
	if err != nil || len(warnings) > 0 || settings.Environment["GREETING"] != "servus" {
		t.Errorf("settings are %v, %v, %v", settings, warnings, err)
	}
}

// All of them at once: none has to do with another.
func TestAD09AD14PKG15EXT01DeparturesFromRC3AreTolerated(t *testing.T) {
	got := expect.Value(margo.ParseDeployment(deploymentWith(t,
		idB, "self-test-app", // no UUID
		"metadata:\n", "kind: ApplicationDeployment\nmetadata:\n  id: Self-Test-App\n", // the same id again
		"name: digitron", "name: Digitron_1", // Kubernetes would not take it
		"  namespace: margo-poc\n", "",
		"deviceId: edge-01", "targetName: 0017", // for YAML a number
		"spec:\n", "spec:\n  replicas: 3\n  x-acme-extensions: 3\n",
		"type: compose", "type: docker-compose",
		`repository: "oci://registry.example/db", revision: 1.0.9`, "packageLocation: 'oci://registry.example:5000/db:latest'",
		"wait: false", `wait: "false"`,
		"8m30s", "300s",
		"  parameters:\n", "  parameters:\n    unused: {value: 1}\n", // without targets
	)))(t)
	want := &margo.Deployment{
		ID: "self-test-app", Name: "Digitron_1", DeviceID: "0017", ApplicationID: "com-northstartida-digitron", Type: margo.Compose,
		Components: []margo.Component{
			{Name: "database", Repository: "oci://registry.example:5000/db", Revision: "latest", Wait: true},
			{Name: "web", Repository: "oci://registry.example/web", Revision: "2.0.0-rc.1_b7", Timeout: 5 * time.Minute},
		},
		Parameters: []margo.Parameter{
			{Name: "unused"},
			{Name: "user", Targets: []margo.Target{{Pointer: "USER_NAME", Components: []string{"database", "web"}}}},
		},
		Ignored: margo.Errors{{Requirement: "EXT-01", Path: "/spec/replicas", Message: "is unknown"}},
	}
	same(t, want, got, ignoreValues)
	for _, kind := range []margo.DeploymentType{margo.Custom, "flatpak"} { // for the device to say that it has no such
		d := expect.Value(margo.ParseDeployment(deploymentWith(t, "type: compose", "type: "+string(kind), "  deviceId: edge-01\n", "")))(t)
		expect.True(t, d.Type == kind && d.DeviceID == "", "type %q is read as %q, no device as %q", kind, d.Type, d.DeviceID)
	}
}

// The tables of README.md.
func TestWhatChangesTheMeaningIsNotRun(t *testing.T) {
	constraints := func(text string) []string {
		return []string{"type: compose\n", "type: compose\n    deviceConstraints: " + text + "\n"}
	}
	for path, change := range map[string][]string{
		"/spec/parameters/user/valueFrom":                                                                   {"value: Some One", "valueFrom: {device: {key: /vendor}}"},
		"/spec/parameters/user/encoding":                                                                    {"value: Some One", "value: Some One\n      encoding: base64"},
		"/spec/parameters/user/targets/0/when":                                                              {"pointer: USER_NAME", "when: x, pointer: USER_NAME"},
		"/spec/requiredCapabilities":                                                                        {"spec:\n", "spec:\n  requiredCapabilities: [gpu]\n"},
		"/spec/deploymentProfile/requiredCapabilities":                                                      {"type: compose\n", "type: compose\n    requiredCapabilities: [gpu]\n"},
		"/spec/deploymentProfile/components/1/requiredCapabilities":                                         {"- name: web\n", "- name: web\n        requiredCapabilities: [gpu]\n"},
		"/spec/deploymentProfile/components/1/properties/valueFrom":                                         {"wait: false", "wait: false, valueFrom: x"},
		"/spec/deploymentProfile/deviceConstraints/peripherals":                                             constraints("{peripherals: [gpu]}"),
		"/spec/deploymentProfile/deviceConstraints/capacityRequirements/gpu":                                constraints("{capacityRequirements: {gpu: 1}}"),
		"/spec/deploymentProfile/deviceConstraints/capacityRequirements/cpu/mhz":                            constraints("{capacityRequirements: {cpu: {cores: 1, mhz: 900}}}"),
		"/spec/deploymentProfile/deviceConstraints/eligibilityRules/0/siteSelector":                         constraints("{eligibilityRules: [{siteSelector: {}}]}"),
		"/spec/deploymentProfile/deviceConstraints/eligibilityRules/0/labelSelector/matchLabels":            constraints("{eligibilityRules: [{labelSelector: {matchExpressions: [], matchLabels: {a: b}}}]}"),
		"/spec/deploymentProfile/deviceConstraints/eligibilityRules/0/labelSelector/matchExpressions/0/not": constraints("{eligibilityRules: [{labelSelector: {matchExpressions: [{key: a, operator: Exists, not: true}]}}]}"),
	} {
		d, err := margo.ParseDeployment(deploymentWith(t, change...))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if len(d.Foreign) != 1 || d.Foreign[0].Path != path || len(d.Ignored) > 0 {
			t.Errorf("%s: foreign are %v, ignored %v", path, d.Foreign, d.Ignored)
		}
	}
	described := deploymentWith(t,
		"id: ad9b", "status: {}\nid: ad9b", "metadata:\n", "metadata:\n  generation: 2\n", "spec:\n", "spec:\n  replicas: 3\n  valueFrom: null\n",
		"value: Some One", "value: Some One\n      sensitive: true\n      description: {valueFrom: x}", "wait: false", "wait: false, helmVersion: 3",
		"  parameters:\n", "  parameters:\n    valueFrom: {value: 1}\n")
	d, err := margo.ParseDeployment(described)
	if err != nil || len(d.Foreign) > 0 || len(d.Ignored) != 3 || !d.Parameters[1].Sensitive {
		t.Errorf("what only describes: %v, foreign %v, ignored %v", err, d.Foreign, d.Ignored)
	}
}

func TestWhatRC3AllowsIsRead(t *testing.T) {
	for name, change := range map[string][]string{
		"EXT-01 extensions at their three places": {
			"spec:\n", "spec:\n  x-acme-extensions: {a: !secret b}\n",
			"type: compose\n", "type: compose\n    x-acme-extensions: {}\n",
			"- name: web\n", "- name: web\n        x-acme-extensions: {}\n",
		},
		"labels":                     {"deviceId: edge-01\n", "deviceId: edge-01\n  labels: {line: a}\n"},
		"unknown metadata":           {"deviceId: edge-01\n", "deviceId: edge-01\n  creationTimestamp: 2026-01-01T00:00:00Z\n"},
		"no parameters":              {"  parameters:\n    user:\n      value: Some One\n      targets:\n        - {pointer: USER_NAME, components: [database, web]}\n", ""},
		"a child of a gateway":       {"edge-01", "gateway-01/path/edge-01"},
		"any child of a gateway":     {"edge-01", "gateway-01/*"},
		"a list repeated by alias":   {"components: [database, web]}", "components: &both [database, web]}\n        - {pointer: USER, components: *both}"},
		"a value of an unusual kind": {"value: Some One", "value: [1, 2.5, true, x]"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := margo.ParseDeployment(deploymentWith(t, change...))
			if err != nil || len(d.Ignored)+len(d.Foreign) > 0 {
				t.Errorf("%v, ignored %v, foreign %v", err, d.Ignored, d.Foreign)
			}
		})
	}
}

func TestDeploymentThatCannotBeMeantIsRefused(t *testing.T) {
	deep := "{a: " + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "}"
	var bomb strings.Builder // ten times ten times ten ... by aliases
	bomb.WriteString("  x-bomb-extensions:\n    a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 9; i++ {
		fmt.Fprintf(&bomb, "    a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), i-1)
	}
	var components strings.Builder
	for i := range margo.MaxComponents {
		fmt.Fprintf(&components, "      - {name: c%d, properties: {repository: 'oci://r/c', revision: 1.0.0}}\n", i)
	}
	for name, row := range map[string]struct {
		change      []string
		requirement string
	}{
		"another kind of document":                      {[]string{"id: ad9b", "kind: Application\nid: ad9b"}, "A-12"},
		"no id":                                         {[]string{"id: ad9b614e-8912-45f4-a523-372358765def\n", ""}, "AD-02"},
		"an id that leads elsewhere":                    {[]string{"ad9b614e", "../bd9b"}, "AD-02"},
		"two ids that contradict each other":            {[]string{"metadata:\n", "metadata:\n  annotations: {id: 4c383af1-4125-49f8-8c60-467996bb9c2f}\n"}, "AD-02"},
		"two application ids":                           {[]string{"metadata:\n", "metadata:\n  annotations: {applicationId: other}\n"}, "A-60"},
		"AD-14 two devices":                             {[]string{"metadata:\n", "metadata:\n  targetName: edge-02\n"}, "AD-14"},
		"no metadata":                                   {[]string{"metadata:\n", "metadatum:\n"}, "ST-08"},
		"no name":                                       {[]string{"  name: digitron\n", ""}, "ST-08"},
		"a name of several lines":                       {[]string{"name: digitron", `name: "a\nb"`}, "ST-08"},
		"AD-14 a device id with a space":                {[]string{"edge-01", "edge 01"}, "AD-14"},
		"no spec":                                       {[]string{"spec:\n", "specs:\n"}, "AD-03"},
		"no application id":                             {[]string{"  applicationId: com-northstartida-digitron\n", ""}, "A-60"},
		"AD-03 no profile":                              {[]string{"deploymentProfile", "deploymentProfiles"}, "AD-03"},
		"AD-03 no type":                                 {[]string{"    type: compose\n", ""}, "AD-03"},
		"AD-13 no components":                           {[]string{"    components:\n", "    components: []\n    x-acme-extensions:\n"}, "AD-13"},
		"too many components":                           {[]string{"    components:\n", "    components:\n" + components.String()}, "AD-13"},
		"a component twice":                             {[]string{"name: web", "name: database"}, "ST-05"},
		"a component without name":                      {[]string{"- name: web\n        ", "- "}, "ST-05"},
		"a component in upper case":                     {[]string{"name: web", "name: Web"}, "ST-05"},
		"AD-04 a component without coordinates":         {[]string{`repository: "oci://registry.example/web", revision: 2.0.0-rc.1_b7, `, ""}, "AD-04"},
		"AD-04 a repository without scheme":             {[]string{"oci://registry.example/web", "registry.example/web"}, "AD-04"},
		"a repository with a line break":                {[]string{"oci://registry.example/web", `oci://registry.example/\nweb`}, "AD-04"},
		"AD-04 a revision that is a digest":             {[]string{"revision: 1.0.9", "revision: sha256:00"}, "AD-04"},
		"AD-04 a revision that YAML takes for a number": {[]string{"revision: 1.0.9", "revision: 1.0"}, "AD-04"},
		"PKG-15 a legacy package without a host":        {[]string{"revision: 1.0.9", "revision: 1.0.9, packageLocation: /etc/passwd"}, "PKG-15"},
		"PKG-15 a legacy reference without a tag":       {[]string{"revision: 1.0.9", "packageLocation: 'oci://registry.example:5000/app'"}, "PKG-15"},
		"PKG-15 a legacy package of another scheme":     {[]string{"revision: 1.0.9", "revision: 1.0.9, packageLocation: 'file:///etc/passwd'"}, "PKG-15"},
		"AD-06 wait that is no boolean":                 {[]string{"wait: false", "wait: maybe"}, "AD-06"},
		"AD-08 a timeout of nothing":                    {[]string{"8m30s", "0m0s"}, "A-29"},
		"AD-08 a negative timeout":                      {[]string{"8m30s", "-5m"}, "A-29"},
		"parameters that are a list":                    {[]string{"parameters:\n    user:\n", "parameters:\n    - user:\n  "}, "AD-09"},
		"a parameter that is no object":                 {[]string{"  parameters:\n", "  parameters:\n    a: b\n"}, "AD-09"},
		"AD-09 a value that is an object":               {[]string{"value: Some One", "value: {a: b}"}, "AD-09"},
		"a value that is a list of lists":               {[]string{"value: Some One", "value: [[1]]"}, "AD-09"},
		"a value that is no number":                     {[]string{"value: Some One", "value: .nan"}, "AD-09"},
		"a value with a tag of its own":                 {[]string{"value: Some One", "value: !secret x"}, "AD-09"},
		"AD-09 a target without pointer":                {[]string{"pointer: USER_NAME, ", ""}, "AD-09"},
		"a target without components":                   {[]string{", components: [database, web]", ""}, "AD-09"},
		"constraints that are no object":                {[]string{"type: compose\n", "type: compose\n    deviceConstraints: [x]\n"}, "AD-11"},
		"AD-12 capacity that is no quantity":            {[]string{"type: compose\n", "type: compose\n    deviceConstraints: {capacityRequirements: {memory: lots}}\n"}, "AD-12"},
		"a rule without expressions":                    {[]string{"type: compose\n", "type: compose\n    deviceConstraints: {eligibilityRules: [{labelSelector: {}}]}\n"}, "AD-11"},
		"a key twice":                                   {[]string{"  parameters:\n", "  parameters: {}\n  parameters:\n"}, ""},
		"a merge key":                                   {[]string{"  name: digitron\n", "  name: digitron\n  <<: {a: b}\n"}, ""},
		"a key that is a list":                          {[]string{"  name: digitron\n", "  name: digitron\n  [a]: b\n"}, ""},
		"nesting without end":                           {[]string{"spec:\n", "spec:\n  x-acme-extensions: " + deep + "\n"}, ""},
		"an alias within itself":                        {[]string{"spec:\n", "spec:\n  x-acme-extensions: &x {a: *x}\n"}, ""},
		"aliases that multiply":                         {[]string{"spec:\n", "spec:\n" + bomb.String()}, ""},
		"more than one document":                        {[]string{"metadata:\n", "---\nmetadata:\n"}, ""},
		"no YAML":                                       {[]string{"metadata:\n", "metadata: [\n"}, ""},
		"too large":                                     {[]string{"Some One", strings.Repeat("x", margo.MaxDeploymentBytes)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := margo.ParseDeployment(deploymentWith(t, row.change...))
			cites(t, err, row.requirement)
		})
	}
}

func TestDocumentsThatAreNoDeploymentAtAllAreRefused(t *testing.T) {
	for _, body := range []string{"", "\n", "# nothing", "~", "text", "[]", "\xff", "%", "{", "--- {}\n--- {}"} {
		d, err := margo.ParseDeployment([]byte(body))
		expect.True(t, err != nil && d == nil, "%q read as %+v, %v", body, d, err)
	}
}

func TestRefusedDeploymentStillNamesWhatAReportNeeds(t *testing.T) {
	d, err := margo.ParseDeployment(deploymentWith(t, "revision: 1.0.9", "revision: v1.0.9", "edge-01", "edge 01"))
	expect.Require(t, len(requirements(err)) == 2, "got %v, want two violations", err)
	if d == nil || d.ID != idB || d.Name != "digitron" || len(d.Components) != 2 || d.Components[0].Name != "database" {
		t.Errorf("got %+v, want id, name and components", d)
	}
}

func TestConstraintsAreReadTolerantly(t *testing.T) {
	body := deploymentWith(t, "type: compose\n", `type: compose
    deviceConstraints:
      capacityRequirements: {cpu: {cores: 0.5, architectures: [mips]}, memory: 1.5 Ti}
      eligibilityRules:
        - labelSelector:
            matchExpressions:
              - {key: a, operator: ContainersAny, itemSelector: {matchExpressions: [{key: /b, operator: Like}]}}
`)
	d := expect.Value(margo.ParseDeployment(body))(t)
	expect.Equal(t, d.Constraints.Memory, 3*margo.TiB/2, "memory")
	e := d.Constraints.Rules[0].Label[0]
	expect.True(t, e.Operator == "ContainsAny" && e.Items[0].Operator == "Like", "read as %+v", e)
}

func FuzzParseDeployment(f *testing.F) {
	for _, name := range []string{
		"valid/ApplicationDeployment-001.yaml", "valid/ApplicationDeployment-compose.yaml", "valid/DesiredState-001.yaml",
		"valid/DesiredState-002.yaml", "invalid/constructed/ApplicationDeployment-bad-timeout.yaml",
	} {
		f.Add(document(f, name))
	}
	f.Add(deploymentWith(f))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("{? [a] : b, <<: {}}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := margo.ParseDeployment(body)
		if d == nil {
			expect.Require(t, err != nil, "neither document nor error")
			return
		}
		expect.Require(t, err != nil || d.ID != "" && d.Name != "" && len(d.Components) != 0, "accepted %+v", d)
		_ = d.Constraints.Check([]byte(gateway)) // whatever they ask for
		for _, c := range d.Components {
			if err == nil && !strings.HasPrefix(c.Repository, "oci://") && c.PackageLocation == "" {
				t.Fatalf("accepted component without package: %+v", c)
			}
			if settings, _, err := d.Settings(c.Name); err == nil && settings.Environment == nil {
				t.Fatal("neither settings nor error")
			}
		}
	})
}
