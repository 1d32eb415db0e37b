package margo_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
)

// gateway is what the device of these tests reports.
const gateway = `{"properties": {"id": "edge-01", "vendor": "Northstar", "modelNumber": "N1", "serialNumber": "7",
  "cpus": [{"cores": 2, "architecture": "arm64"}, {"cores": 4, "architecture": "arm"}, {"cores": 8}],
  "memory": "2Gi", "storage": "1536Mi",
  "peripherals": [{"type": "gpu", "manufacturer": "NVIDIA", "model": "T4"}, {"type": "camera", "manufacturer": "Acme"}],
  "interfaces": [{"type": "ethernet"}, {"type": "canbus"}], "otelCollector": true,
  "supportedRuntimes": ["oci"], "supportedDeploymentTypes": ["compose"]},
 "labels": {"example.com/line": 7, "example.com/zones": ["a", "b"], "example.com/safe": true, "example.com/site": "north",
  "slash/and~tilde": "x"}}`

// meets reads constraints as a document has them, and evaluates them.
func meets(t *testing.T, constraints string) error {
	t.Helper()
	d := expect.Value(margo.ParseDeployment(deploymentWith(t, "type: compose\n", "type: compose\n    deviceConstraints: "+constraints+"\n")))(t)
	return d.Constraints.Check([]byte(gateway))
}

func TestAD12CapacityIsCheckedFirst(t *testing.T) {
	for name, test := range map[string]struct {
		capacity string
		unmet    string // part of the error; empty: met
	}{
		"none":                                   {`{}`, ""},
		"CAP-12 one CPU has enough":              {`{cpu: {cores: 4, architectures: [arm]}}`, ""},
		"CAP-12 entries are never added up":      {`{cpu: {cores: 5, architectures: [arm, arm64]}}`, "capacityRequirements.cpu: no CPU of this device has 5 cores of arm or arm64"},
		"CAP-12 the right one has too few":       {`{cpu: {cores: 2.5, architectures: [arm64]}}`, "no CPU"},
		"any architecture":                       {`{cpu: {cores: 8}}`, ""},
		"one without a name on the wire":         {`{cpu: {cores: 8, architectures: [other]}}`, ""},
		"another architecture":                   {`{cpu: {cores: 1, architectures: [amd64]}}`, "no CPU"},
		"the kernel's name of an architecture":   {`{cpu: {cores: 1, architectures: [aarch64]}}`, ""},
		"as much memory as there is":             {`{memory: 2048Mi}`, ""},
		"more memory than there is":              {`{memory: 2049Mi}`, "capacityRequirements.memory: 2049Mi required, this device has 2Gi"},
		"as much storage as there is":            {`{storage: 1.5Gi}`, ""},
		"more storage than there is":             {`{storage: 1Ti}`, "capacityRequirements.storage: 1024Gi required, this device has 1536Mi"},
		"capacity before rules that are not met": {`{memory: 1Ti}, eligibilityRules: [{labelSelector: {matchExpressions: [{key: a, operator: Exists}]}}]`, "capacityRequirements.memory"},
	} {
		t.Run(name, func(t *testing.T) {
			err := meets(t, "{capacityRequirements: "+test.capacity+"}")
			var unmet *margo.Unmet
			switch {
			case test.unmet == "" && err != nil:
				t.Error(err)
			case test.unmet != "" && (!errors.As(err, &unmet) || !unmet.Capacity || !strings.Contains(unmet.Text, test.unmet)):
				t.Errorf("got %v, want %q", err, test.unmet)
			}
		})
	}
}

func TestAD11EligibilityRules(t *testing.T) {
	label := func(key, rest string) string {
		return fmt.Sprintf("[{labelSelector: {matchExpressions: [{key: %q, operator: %s}]}}]", key, rest)
	}
	property := func(key, rest string) string {
		return fmt.Sprintf("[{propertySelector: {matchExpressions: [{key: %q, operator: %s}]}}]", key, rest)
	}
	items := func(expressions string) string { return "itemSelector: {matchExpressions: [" + expressions + "]}" }
	const line, zones, site, safe = "example.com/line", "example.com/zones", "example.com/site", "example.com/safe"
	for name, test := range map[string]struct {
		rules string
		met   bool
	}{
		"none":                         {"[]", true},
		"In, a string":                 {property("/vendor", "In, values: [Acme, Northstar]"), true},
		"In, another case":             {property("/vendor", "In, values: [northstar]"), false},
		"In, a number":                 {label(line, "In, values: [6, 7.0]"), true},
		"In, a number as a string":     {label(line, `In, values: ["7"]`), false},
		"In, mixed values":             {label(line, `In, values: [7, "7"]`), false},
		"In, no values":                {label(line, "In"), false},
		"In, a boolean":                {label(safe, "In, values: [true]"), true},
		"In, two booleans":             {label(safe, "In, values: [true, false]"), false},
		"In, a list shares one":        {label(zones, "In, values: [b, c]"), true},
		"In, a list shares none":       {label(zones, "In, values: [c]"), false},
		"In, a list of objects":        {property("/peripherals", "In, values: [gpu]"), false},
		"In, an absent key":            {label("nobody", "In, values: [a]"), false},
		"NotIn, other values":          {property("/vendor", "NotIn, values: [Acme]"), true},
		"NotIn, the value":             {property("/vendor", "NotIn, values: [Northstar]"), false},
		"NotIn, a list shares one":     {label(zones, "NotIn, values: [b, c]"), false},
		"NotIn, a list shares none":    {label(zones, "NotIn, values: [c]"), true},
		"NotIn, an absent key":         {label("nobody", "NotIn, values: [a]"), false},
		"Exists":                       {label(site, "Exists"), true},
		"Exists, a list of objects":    {property("/peripherals", "Exists"), false},
		"Exists with values":           {label(site, "Exists, values: [north]"), false},
		"DoesNotExist":                 {label("nobody", "DoesNotExist"), true},
		"DoesNotExist, but it does":    {label(site, "DoesNotExist"), false},
		"Gt":                           {label(line, "Gt, values: [6]"), true},
		"Gt, equal":                    {label(line, "Gt, values: [7]"), false},
		"Gt, a number in quotes":       {label(line, `Gt, values: ["6.5"]`), true},
		"Gt, two values":               {label(line, "Gt, values: [1, 2]"), false},
		"Gt, of a string":              {label(site, "Gt, values: [1]"), false},
		"Lt":                           {label(line, "Lt, values: [7.5]"), true},
		"Lt, an element of a list":     {property("/cpus/0/cores", "Lt, values: [3]"), true},
		"an index beyond the list":     {property("/cpus/3/cores", "Exists"), false},
		"an index that is none":        {property("/cpus/00/cores", "Exists"), false},
		"a pointer without a slash":    {property("vendor", "Exists"), false},
		"a label's name is no pointer": {label("slash/and~tilde", "In, values: [x]"), true},
		"ContainsAll":                  {property("/peripherals", "ContainsAll, "+items("{key: /type, operator: In, values: [gpu]}, {key: /manufacturer, operator: In, values: [NVIDIA]}")), true},
		"ContainsAll, of two elements": {property("/peripherals", "ContainsAll, "+items("{key: /type, operator: In, values: [gpu]}, {key: /manufacturer, operator: In, values: [Acme]}")), false},
		"ContainsAny":                  {property("/peripherals", "ContainsAny, "+items("{key: /type, operator: In, values: [speaker]}, {key: /manufacturer, operator: In, values: [Acme]}")), true},
		"ContainsAny, none":            {property("/peripherals", "ContainsAny, "+items("{key: /type, operator: In, values: [speaker]}")), false},
		"A-32 ContainersAny":           {property("/interfaces", "ContainersAny, "+items("{key: /type, operator: In, values: [canbus]}")), true},
		"ContainsAll without items":    {property("/peripherals", "ContainsAll"), false},
		"ContainsAll with values":      {property("/peripherals", "ContainsAll, values: [gpu], "+items("{key: /type, operator: Exists}")), false},
		"ContainsAll of strings":       {property("/supportedRuntimes", "ContainsAll, "+items("{key: /type, operator: Exists}")), false},
		"A-32 an unknown operator":     {label(site, "Like, values: [north]"), false},
		"rules are alternatives": {
			"[{labelSelector: {matchExpressions: [{key: nobody, operator: Exists}]}}, {labelSelector: {matchExpressions: [{key: " + site + ", operator: Exists}]}}]", true,
		},
		"expressions are not": {
			"[{labelSelector: {matchExpressions: [{key: " + site + ", operator: Exists}, {key: nobody, operator: Exists}]}}]", false,
		},
		"both selectors have to be met": {
			"[{labelSelector: {matchExpressions: [{key: " + site + ", operator: Exists}]}, propertySelector: {matchExpressions: [{key: /colour, operator: Exists}]}}]", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := meets(t, "{eligibilityRules: "+test.rules+"}")
			var unmet *margo.Unmet
			switch {
			case test.met && err != nil:
				t.Error(err)
			case !test.met && (!errors.As(err, &unmet) || unmet.Capacity || !strings.Contains(unmet.Text, "rule 1: ")):
				t.Errorf("got %v, want that no rule is met", err)
			}
		})
	}
}
