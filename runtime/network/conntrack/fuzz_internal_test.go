package conntrack

import "testing"

// FuzzRead reads anything as a connection: nothing makes it fail, and the name
// of one that was read can be read. The seeds are what a kernel said.
func FuzzRead(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		flow, err := readFlow(data)
		if err != nil {
			return
		}
		if err := flow.readKey(data); err != nil {
			t.Fatalf("cannot name what was read: %v", err)
		}
		m := message(remove, flow.family)
		m.Attributes = flow.key
		named, err := readFlow(append(m.Header, m.Encoded()...))
		if err != nil || named.Asked != flow.Asked || named.Protocol != flow.Protocol {
			t.Errorf("%+v is named %+v: %v", flow, named, err)
		}
	})
}
