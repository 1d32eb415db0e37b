package agent

import (
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/capability"
)

// CAP-03: what is described anew with each poll is what the machine is now,
// though the document is written again only when something about it changed.
func TestCAP03AChangedMachineIsDescribedAnew(t *testing.T) {
	device := Device{ID: "edge-01", Labels: map[string]any{"example.com/line": "a"}}
	machine := func(memory uint64, kinds ...capability.Kind) capability.Facts {
		f := capability.Facts{CPU: capability.CPU{Cores: 1, Architecture: "arm"}, Memory: memory, Storage: 1 << 30}
		for _, kind := range kinds {
			f.Interfaces = append(f.Interfaces, capability.Interface{Kind: kind, Name: "if0"})
		}
		return f
	}
	relabelled := device
	relabelled.Labels = map[string]any{"example.com/line": "b"}
	broken := device
	broken.Labels = map[string]any{"example.com/line": []int{1}}

	var d description
	previous := ""
	for _, step := range []struct {
		name   string
		device Device
		facts  capability.Facts
		same   bool
		fails  bool
	}{
		{name: "at first", device: device, facts: machine(64 << 20)},
		{name: "nothing changed", device: device, facts: machine(64 << 20), same: true},
		{name: "more memory", device: device, facts: machine(128 << 20)},
		{name: "an interface", device: device, facts: machine(128<<20, capability.Ethernet)},
		{name: "another label", device: relabelled, facts: machine(128<<20, capability.Ethernet)},
		{name: "a label that is none", device: broken, facts: machine(128<<20, capability.Ethernet), fails: true},
		{name: "the same again", device: broken, facts: machine(128<<20, capability.Ethernet), fails: true},
		{name: "mended", device: relabelled, facts: machine(128<<20, capability.Ethernet), same: true},
	} {
		doc, err := d.of(step.device, step.facts)
		if (err != nil) != step.fails {
			t.Fatalf("%s: %v", step.name, err)
		}
		if step.fails {
			continue
		}
		if same := string(doc) == previous; same != step.same {
			t.Errorf("%s: the same document: %v, want %v", step.name, same, step.same)
		}
		if _, err := margo.ParseCapabilities(doc); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		previous = string(doc)
	}
}
