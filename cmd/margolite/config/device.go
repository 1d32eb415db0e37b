package config

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/capability"
)

// amount is a size in bytes of what a machine has.
func amount(into *uint64) field {
	return func(r *reader, key string, n *yaml.Node) {
		var number int64
		size(&number, 0, maxBytes)(r, key, n)
		*into = uint64(number)
	}
}

// addedInterfaces are kinds of interfaces that the machine has besides those
// that are found.
func addedInterfaces(into *[]capability.Interface) field {
	kinds := values{
		string(capability.Ethernet), string(capability.WiFi), string(capability.Cellular), string(capability.Bluetooth),
		string(capability.USB), string(capability.CANBus), string(capability.RS232),
	}
	return func(r *reader, key string, n *yaml.Node) {
		var names []string
		list(&names, 64, func(s string) error {
			if !slices.Contains(kinds, s) {
				return fmt.Errorf("expected %s, got %s", strings.Join(kinds, " or "), quote(s))
			}
			return nil
		})(r, key, n)
		for _, name := range names {
			*into = append(*into, capability.Interface{Kind: capability.Kind(name)})
		}
	}
}

// addedPeripheral is one that the machine has besides those that are found.
func addedPeripheral(into *capability.Peripheral) field {
	return func(r *reader, key string, n *yaml.Node) {
		before := len(r.mistakes)
		section(fields{
			"type": choice((*string)(&into.Kind), values{
				string(capability.GPU), string(capability.NPU), string(capability.Display),
				string(capability.Camera), string(capability.Microphone), string(capability.Speaker),
			}),
			"manufacturer": text(&into.Vendor, line),
			"model":        text(&into.Model, line),
		})(r, key, n)
		if into.Kind == "" && len(r.mistakes) == before {
			r.mistake(n, key, "expected the type of the peripheral")
		}
	}
}
