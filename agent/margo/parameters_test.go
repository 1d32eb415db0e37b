package margo_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/margolite/margolite/agent/margo"
)

// parametersOf is a deployment with components database and web and the given
// parameters, written in YAML's flow style.
func parametersOf(t *testing.T, parameters ...string) *margo.Deployment {
	t.Helper()
	d, err := margo.ParseDeployment(deploymentWith(t,
		"parameters:\n    user:\n      value: Some One\n      targets:\n        - {pointer: USER_NAME, components: [database, web]}",
		"parameters: {"+strings.Join(parameters, ", ")+"}"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestParameterValuesBecomeTextOfVariables(t *testing.T) {
	for value, want := range map[string]string{
		"plain text":               "plain text",
		"'12'":                     "12",
		`""`:                       "",
		"12":                       "12",
		"+12":                      "12",
		"-0":                       "0",
		"0x1F":                     "31",
		"1_000":                    "1000",
		"9223372036854775807":      "9223372036854775807",
		"18446744073709551615":     "18446744073709551615",
		"99999999999999999999":     "99999999999999999999",
		"1.50":                     "1.5",
		"1e3":                      "1000",
		"1e-7":                     "0.0000001",
		"0.1":                      "0.1",
		"true":                     "true",
		"True":                     "true",
		"yes":                      "yes",
		"2026-01-01":               "2026-01-01",
		"[a, 1, true, 2.50, '3']":  `["a",1,true,2.5,"3"]`,
		"[]":                       "[]",
		`["<a & \"b\">"]`:          `["<a & \"b\">"]`,
		"1.0.9":                    "1.0.9",
		`"two\nlines"`:             "two\nlines",
		"18446744073709551616.0e0": "18446744073709552000",
	} {
		t.Run(value, func(t *testing.T) {
			d := parametersOf(t, "a: {value: "+value+", targets: [{pointer: A, components: [web]}]}")
			got, _, err := d.Environment("web")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]string{"A": want}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAD09AD10EnvironmentHoldsWhatTargetsTheComponent(t *testing.T) {
	d := parametersOf(t,
		"a: {value: 1, targets: [{pointer: BOTH, components: [database, web]}, {pointer: DB_ONLY, components: [database]}]}",
		"b: {value: 2, targets: [{pointer: ENV.OLD_FORM, components: [web]}]}",
		"c: {value: null, targets: [{pointer: NOTHING, components: [web]}]}",
		"d: {targets: [{pointer: NOTHING, components: [web]}]}",
		"e: {value: 1, targets: [{pointer: BOTH, components: [web]}]}",
	)
	for component, want := range map[string]map[string]string{
		"database": {"BOTH": "1", "DB_ONLY": "1"},
		"web":      {"BOTH": "1", "OLD_FORM": "2"},
	} {
		got, warnings, err := d.Environment(component)
		if err != nil || warnings != nil {
			t.Fatalf("component %s: %v, %v", component, warnings, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("component %s: %s", component, diff)
		}
	}
}

func TestEnvironmentIsEmptyWithoutParameters(t *testing.T) {
	got, warnings, err := parametersOf(t).Environment("web")
	if err != nil || warnings != nil || got == nil || len(got) != 0 {
		t.Errorf("got %v, %v, %v", got, warnings, err)
	}
}

func TestAD09TargetOfAnUnknownComponentIsAWarning(t *testing.T) {
	d := parametersOf(t, "a: {value: 1, targets: [{pointer: A, components: [web, cache]}]}")
	got, warnings, err := d.Environment("web")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"A": "1"}, got); diff != "" {
		t.Error(diff)
	}
	want := []string{`/spec/parameters/a/targets/0: deployment has no component "cache" [AD-09]`}
	if diff := cmp.Diff(want, warnings); diff != "" {
		t.Error(diff)
	}
}

func TestEnvironmentThatIsNotCertainIsAnError(t *testing.T) {
	for name, row := range map[string]struct {
		parameters  []string
		requirement string
	}{
		"AD-09 two values for one variable": {[]string{
			"a: {value: 1, targets: [{pointer: A, components: [web]}]}",
			"b: {value: 2, targets: [{pointer: ENV.A, components: [web]}]}",
		}, "AD-09"},
		"AD-10 a Helm path":      {[]string{"a: {value: 1, targets: [{pointer: settings.limits.cpu, components: [web]}]}"}, "AD-10"},
		"nothing but a prefix":   {[]string{"a: {value: 1, targets: [{pointer: ENV., components: [web]}]}"}, "AD-10"},
		"AD-10 a digit in front": {[]string{"a: {value: 1, targets: [{pointer: 1A, components: [web]}]}"}, "AD-10"},
		"AD-10 an assignment":    {[]string{"a: {value: 1, targets: [{pointer: A=B, components: [web]}]}"}, "AD-10"},
		"a NUL in the value":     {[]string{`a: {value: "x\0y", targets: [{pointer: A, components: [web]}]}`}, "AD-10"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := parametersOf(t, row.parameters...).Environment("web")
			if got != nil || !slices.Contains(requirements(err), row.requirement) {
				t.Errorf("got %v, %v, want an error by %s", got, err, row.requirement)
			}
			if _, _, err := parametersOf(t, row.parameters...).Environment("database"); err != nil {
				t.Errorf("another component is affected: %v", err)
			}
		})
	}
}

func TestEnvironmentOfAComponentThatDoesNotExistIsAnError(t *testing.T) {
	if _, _, err := parametersOf(t).Environment("cache"); err == nil {
		t.Error("no error")
	}
}

func TestValuesOfParametersDoNotShowWhenPrinted(t *testing.T) {
	const secret = "open-sesame"
	d := parametersOf(t,
		"a: {value: "+secret+", targets: [{pointer: A, components: [web]}]}",
		"b: {value: ["+secret+"], targets: [{pointer: A, components: [web]}]}",
	)
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("text", "parameters", d.Parameters, "deployment", d)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("json", "parameters", d.Parameters, "deployment", d)
	_, _, err := d.Environment("web")
	shown := log.String() + fmt.Sprintf("%v %+v %#v %s %q %v", *d, *d, *d, d.Parameters, d.Parameters, err)
	if strings.Contains(shown, secret) {
		t.Errorf("the value shows: %s", shown)
	}
}
