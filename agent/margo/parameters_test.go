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
	"github.com/margolite/margolite/test/expect"
)

// parametersOf is a deployment with components database and web and the given
// parameters, written in YAML's flow style.
func parametersOf(t *testing.T, parameters ...string) *margo.Deployment {
	t.Helper()
	d := expect.Value(margo.ParseDeployment(deploymentWith(t,
		"parameters:\n    user:\n      value: Some One\n      targets:\n        - {pointer: USER_NAME, components: [database, web]}",
		"parameters: {"+strings.Join(parameters, ", ")+"}")))(t)
	return d
}

func TestParameterValuesBecomeTextOfVariables(t *testing.T) {
	for value, want := range map[string]string{
		`""`:                       "",
		"12":                       "12",
		"+12":                      "12",
		"-0":                       "0",
		"0x1F":                     "31",
		"1_000":                    "1000",
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
		`"two\nlines"`:             "two\nlines",
		"18446744073709551616.0e0": "18446744073709552000",
	} {
		t.Run(value, func(t *testing.T) {
			d := parametersOf(t, "a: {value: "+value+", targets: [{pointer: A, components: [web]}]}")
			got, _, err := d.Settings("web")
			check(t, err)
			same(t, map[string]string{"A": want}, got.Environment)
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
		got, warnings, err := d.Settings(component)
		expect.Require(t, err == nil && warnings == nil, "component %s: %v, %v", component, warnings, err)
		if diff := cmp.Diff(want, got.Environment); diff != "" {
			t.Errorf("component %s: %s", component, diff)
		}
	}
}

func TestPortsArePublishedOnTheValue(t *testing.T) {
	d := parametersOf(t,
		"a: {value: 8080, targets: [{pointer: PORTS.80, components: [web]}, {pointer: PORTS.80/tcp, components: [web]}]}",
		"b: {value: '5353', targets: [{pointer: PORTS.53/udp, components: [web]}]}",
		"c: {targets: [{pointer: PORTS.443, components: [web]}]}",
	)
	got, warnings, err := d.Settings("web")
	if err != nil || warnings != nil {
		t.Fatal(warnings, err)
	}
	same(t, margo.Settings{Environment: map[string]string{}, Ports: map[string]string{"80/tcp": "8080", "53/udp": "5353"}}, got)
}

func TestAD09TargetThatIsNotKnownIsAWarning(t *testing.T) {
	d := parametersOf(t, "a: {value: 1, targets: [{pointer: A, components: [web, cache]}]}",
		"b: {value: 1, targets: [{pointer: settings.limits.cpu, components: [web]}, {pointer: B, components: [web]}]}")
	got, warnings, err := d.Settings("web")
	check(t, err)
	same(t, map[string]string{"A": "1", "B": "1"}, got.Environment)
	want := `/spec/parameters/a/targets/0: deployment has no component "cache" [AD-09]; ` +
		`/spec/parameters/b/targets/0: pointer "settings.limits.cpu" is neither the name of a variable nor PORTS.<container port>[/udp] [AD-10]`
	same(t, want, warnings.Error())
	for _, pointer := range []string{"ENV.", "1A", "A=B", "env.A", "PORTS.", "PORTS.web", "PORTS.0", "PORTS.080", "PORTS.65536", "PORTS.80/", "PORTS.80/sctp", "ports.80", "PORTS.80.81"} {
		got, warnings, err := parametersOf(t, "a: {value: 1, targets: [{pointer: "+pointer+", components: [web]}]}").Settings("web")
		if err != nil || len(warnings) != 1 || len(got.Environment)+len(got.Ports) != 0 {
			t.Errorf("%s sets %v, %v, %v", pointer, got, warnings, err)
		}
	}
}

// A parameter is read where one of its targets is.
func TestParametersThatNoServiceReads(t *testing.T) {
	d := parametersOf(t,
		"both: {value: 1, targets: [{pointer: A, components: [database, web]}]}",
		"one: {value: 1, targets: [{pointer: ENV.B, components: [database, web]}]}",
		"none: {value: 1, targets: [{pointer: C, components: [database, web]}]}",
		"port: {value: 1, targets: [{pointer: PORTS.80, components: [web]}]}",
		"moved: {value: 1, targets: [{pointer: PORTS.81, components: [web]}]}",
		"elsewhere: {value: 1, targets: [{pointer: A, components: [cache]}]}",
		"helm: {value: 1, targets: [{pointer: a.b, components: [web]}]}",
		"aimless: {value: 1}",
		"empty: {targets: [{pointer: C, components: [web]}]}",
	)
	got := d.Unread(map[string]map[string]bool{"database": {"C": true}, "web": {"B": true, "C": true, "80/tcp": true}})
	same(t, []string{"none", "port", "elsewhere", "helm", "aimless"}, got)
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
		"two ports for one": {[]string{
			"a: {value: 80, targets: [{pointer: PORTS.80, components: [web]}]}",
			"b: {value: 81, targets: [{pointer: PORTS.80/tcp, components: [web]}]}",
		}, "AD-09"},
		"AD-10 a NUL in the value": {[]string{`a: {value: "x\0y", targets: [{pointer: A, components: [web]}]}`}, "AD-10"},
		"a port that is none":      {[]string{"a: {value: web, targets: [{pointer: PORTS.80, components: [web]}]}"}, "AD-10"},
		"a port out of range":      {[]string{"a: {value: 65536, targets: [{pointer: PORTS.80, components: [web]}]}"}, "AD-10"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := parametersOf(t, row.parameters...).Settings("web")
			if got.Environment != nil || !slices.Contains(requirements(err), row.requirement) {
				t.Errorf("got %v, %v, want an error by %s", got, err, row.requirement)
			}
			if _, _, err := parametersOf(t, row.parameters...).Settings("database"); err != nil {
				t.Errorf("another component is affected: %v", err)
			}
		})
	}
}

func TestEnvironmentOfAComponentThatDoesNotExistIsAnError(t *testing.T) {
	if _, _, err := parametersOf(t).Settings("cache"); err == nil {
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
	_, _, err := d.Settings("web")
	shown := log.String() + fmt.Sprintf("%v %+v %#v %s %q %v", *d, *d, *d, d.Parameters[0].Value, d.Parameters[1].Value, err)
	expect.True(t, !strings.Contains(shown, secret), "the value shows: %s", shown)
}
