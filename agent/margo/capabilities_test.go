package margo_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
)

func hosting() margo.Capabilities {
	return margo.Capabilities{Properties: margo.Properties{
		ID: "edge-01", Vendor: "Northstar Industrial Devices", ModelNumber: "332ANZE1-N1", SerialNumber: "PF45343-AA",
		Hosting: &margo.Hosting{
			CPUs:            []margo.CPU{{Cores: 4, Architecture: "amd64"}},
			Memory:          8 * margo.GiB,
			Storage:         62500000000,
			Peripherals:     []margo.Peripheral{{Type: "gpu", Manufacturer: "NVIDIA", Model: "T4"}},
			Interfaces:      []margo.Interface{{Type: "ethernet"}, {Type: "canbus"}},
			OTelCollector:   true,
			Runtimes:        []string{"oci"},
			DeploymentTypes: []margo.DeploymentType{margo.Compose},
		},
	}}
}

func TestCAP13CapabilitiesAreWrittenAsRC3WantsThem(t *testing.T) {
	labelled := hosting()
	labelled.Labels = map[string]any{
		"example.com/line":  "7 & 8",
		"example.com/zones": []any{"a", "b"},
		"example.com/slots": []any{1, 2.5},
		"example.com/spare": true,
	}
	labelled.Extensions = map[string]json.RawMessage{"x-acme-extensions": json.RawMessage(`{"b":[1,{"a":null}],"a":1e400}`)}
	small := hosting()
	small.Properties.Hosting = &margo.Hosting{
		CPUs:            []margo.CPU{{Cores: 0.5}}, // riscv64 has no name on the wire
		Memory:          60 * margo.MiB,
		OTelCollector:   true,
		Runtimes:        []string{"oci"},
		DeploymentTypes: []margo.DeploymentType{margo.Compose},
	}
	relay := hosting()
	relay.Properties.Hosting = nil
	for name, c := range map[string]margo.Capabilities{
		"capabilities-hosting.json":  hosting(),
		"capabilities-labelled.json": labelled,
		"capabilities-small.json":    small,
		"capabilities-relay.json":    relay,
	} {
		t.Run(name, func(t *testing.T) {
			body := expect.Value(c.Marshal())(t)
			golden(t, name, body)
			back := expect.Value(margo.ParseCapabilities(body))(t)
			again := expect.Value(back.Marshal())(t)
			expect.True(t, string(again) == string(body), "read back and written again:\n%s\n%s", again, body)
		})
	}
}

func TestCAP10CustomExampleIsValidWithoutTheMembersOfEarlierRevisions(t *testing.T) {
	var body map[string]json.RawMessage
	check(t, json.Unmarshal(document(t, "valid/from-text/DeviceCapabilitiesManifest-custom.json"), &body))
	delete(body, "apiVersion")
	delete(body, "kind")
	data := expect.Value(json.Marshal(body))(t)
	expect.OK(t, expect.ErrorOf(margo.ParseCapabilities(data)))
}

func TestCapabilitiesThatAStrictWFMWouldRefuseAreNotWritten(t *testing.T) {
	for name, row := range map[string]struct {
		change      func(*margo.Capabilities)
		requirement string
	}{
		"CAP-07 no id":                        {func(c *margo.Capabilities) { c.Properties.ID = "" }, "CAP-07"},
		"CAP-07 an id with a space":           {func(c *margo.Capabilities) { c.Properties.ID = "edge 01" }, "CAP-07"},
		"CAP-07 an id with a wildcard":        {func(c *margo.Capabilities) { c.Properties.ID = "edge/*" }, "CAP-07"},
		"CAP-02 no vendor":                    {func(c *margo.Capabilities) { c.Properties.Vendor = "" }, "CAP-02"},
		"CAP-02 no model number":              {func(c *margo.Capabilities) { c.Properties.ModelNumber = "" }, "CAP-02"},
		"CAP-02 no serial number":             {func(c *margo.Capabilities) { c.Properties.SerialNumber = "" }, "CAP-02"},
		"CAP-04 no CPU":                       {func(c *margo.Capabilities) { c.Properties.Hosting.CPUs = nil }, "CAP-04"},
		"a CPU without cores":                 {func(c *margo.Capabilities) { c.Properties.Hosting.CPUs[0].Cores = 0 }, "CAP-12"},
		"CAP-14 an architecture without name": {func(c *margo.Capabilities) { c.Properties.Hosting.CPUs[0].Architecture = "riscv64" }, "CAP-14"},
		"CAP-04 no collector":                 {func(c *margo.Capabilities) { c.Properties.Hosting.OTelCollector = false }, "CAP-04"},
		"CAP-04 no runtime":                   {func(c *margo.Capabilities) { c.Properties.Hosting.Runtimes = nil }, "CAP-04"},
		"CAP-14 another runtime":              {func(c *margo.Capabilities) { c.Properties.Hosting.Runtimes = []string{"lxc"} }, "CAP-14"},
		"CAP-04 no deployment type":           {func(c *margo.Capabilities) { c.Properties.Hosting.DeploymentTypes = nil }, "CAP-04"},
		"CAP-14 another deployment type":      {func(c *margo.Capabilities) { c.Properties.Hosting.DeploymentTypes = []margo.DeploymentType{"swarm"} }, "CAP-14"},
		"CAP-14 another peripheral":           {func(c *margo.Capabilities) { c.Properties.Hosting.Peripherals[0].Type = "npu" }, "CAP-14"},
		"CAP-14 another interface":            {func(c *margo.Capabilities) { c.Properties.Hosting.Interfaces[0].Type = "lora" }, "CAP-14"},
		"CAP-10 a custom type without labels": {func(c *margo.Capabilities) { c.Properties.Hosting.DeploymentTypes[0] = margo.Custom }, "CAP-10"},
		"EXT-02 an extension of another name": {func(c *margo.Capabilities) { c.Extensions = map[string]json.RawMessage{"acme": json.RawMessage("{}")} }, "EXT-02"},
		"EXT-02 an extension in place of all": {func(c *margo.Capabilities) { c.Extensions = map[string]json.RawMessage{"properties": nil} }, "EXT-02"},
		"EXT-02 an extension that is no object": {func(c *margo.Capabilities) {
			c.Extensions = map[string]json.RawMessage{"x-acme-extensions": json.RawMessage("1")}
		}, "EXT-02"},
	} {
		t.Run(name, func(t *testing.T) {
			c := hosting()
			row.change(&c)
			body, err := c.Marshal()
			if body != nil || !slices.Contains(requirements(err), row.requirement) {
				t.Errorf("got %s, %v, want it refused by %s", body, err, row.requirement)
			}
		})
	}
}

func TestCapabilitiesAreReadStrictly(t *testing.T) {
	valid := expect.Value(hosting().Marshal())(t)
	for name, row := range map[string]struct{ from, to, requirement string }{
		"CAP-13 another root member":          {`{"properties"`, `{"status":{},"properties"`, "CAP-13"},
		"CAP-13 another member of properties": {`"vendor"`, `"roles":[],"vendor"`, "CAP-13"},
		"memory missing":                      {`"memory":"8Gi",`, ``, "CAP-11"},
		"CAP-11 memory in bytes":              {`"memory":"8Gi"`, `"memory":8589934592`, "CAP-11"},
		"CAP-11 storage in decimal units":     {`"storage":"59604Mi"`, `"storage":"59GB"`, "CAP-11"},
		"CAP-04 interfaces missing":           {`,"interfaces":[{"type":"ethernet"},{"type":"canbus"}]`, ``, "CAP-04"},
		"cores as a string":                   {`"cores":4`, `"cores":"4"`, "CAP-12"},
		"cores beyond all bounds":             {`"cores":4`, `"cores":1e999`, "CAP-12"},
		"the collector as a string":           {`"otelCollector":true`, `"otelCollector":"true"`, "CAP-04"},
		"a label of null":                     {`{"properties"`, `{"labels":{"a":null},"properties"`, "CAP-09"},
		"labels null":                         {`{"properties"`, `{"labels":null,"properties"`, "CAP-09"},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Require(t, strings.Contains(string(valid), row.from), "%s does not contain %s", valid, row.from)
			_, err := margo.ParseCapabilities([]byte(strings.Replace(string(valid), row.from, row.to, 1)))
			cites(t, err, row.requirement)
		})
	}
}

func TestCAP09WhatIsNoLabelIsRefused(t *testing.T) {
	for _, value := range []any{
		nil, math.NaN(), math.Inf(1),
		map[string]any{},
		[]any{nil},
		[]any{true},
		[]any{"a", 1},
		[]any{[]any{}},
		struct{}{},
		strings.Repeat("x", margo.MaxCapabilitiesBytes),
	} {
		c := hosting()
		c.Labels = map[string]any{"a": value}
		expect.ErrorWith(t, expect.ErrorOf(c.Marshal()), "cannot marshal", "label %.40v", value)
	}
}

func TestCAP14ArchitecturesGoByTheNamesOfTheWire(t *testing.T) {
	for name, want := range map[string]string{
		"amd64": "amd64", "x86_64": "amd64", "arm64": "arm64", "aarch64": "arm64", "arm": "arm", "armv7l": "arm", "armv6l": "arm",
		"riscv64": "", "386": "", "": "",
	} {
		expect.Equal(t, margo.Architecture(name), want, "%q", name)
	}
}

func FuzzParseCapabilities(f *testing.F) {
	for _, name := range []string{
		"valid/from-text/DeviceCapabilitiesManifest-hosting.json",
		"valid/from-text/DeviceCapabilitiesManifest-custom.json",
		"valid/from-text/DeviceCapabilitiesManifest-gateway-nonhosting.json",
		"valid/DeviceCapabilitiesManifest-001.json",
	} {
		f.Add(document(f, name))
	}
	f.Add([]byte(`{"properties":{"id":"a","vendor":"b","modelNumber":"c","serialNumber":"d"},"labels":{"a":["x"]},"x-a-extensions":{"a":1e400}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := margo.ParseCapabilities(body)
		if err != nil {
			return
		}
		// Memory of less than a Ki and cores of 1e-400 may end as 0.
		again, err := c.Marshal()
		if err != nil {
			if slices.Contains(requirements(err), "CAP-04") || len(body) > margo.MaxCapabilitiesBytes/8 {
				return
			}
			t.Fatal(err)
		}
		back := expect.Value(margo.ParseCapabilities(again))(t)
		third, err := back.Marshal()
		expect.Require(t, err == nil && string(third) == string(again), "%v\n%s\n%s", err, again, third)
	})
}
