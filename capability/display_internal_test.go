package capability

import "testing"

func FuzzEDID(f *testing.F) {
	f.Add(block("DEL", "DELL U2415"))
	f.Add(block("", "\x00\xff"))
	f.Add("\x00\xff\xff\xff\xff\xff\xff\x00")
	f.Fuzz(func(t *testing.T, data string) {
		vendor, model := edid(data)
		if shown(vendor) != vendor || shown(model) != model || len(model) > 13 {
			t.Errorf("vendor %q, model %q", vendor, model)
		}
		if len(data) < 128 && vendor+model != "" {
			t.Errorf("vendor %q, model %q of %d bytes", vendor, model, len(data))
		}
	})
}

// block makes a block of EDID.
func block(vendor, name string) string {
	b := make([]byte, 128)
	copy(b, "\x00\xff\xff\xff\xff\xff\xff\x00")
	if len(vendor) == 3 {
		packed := uint16(vendor[0]-'A'+1)<<10 | uint16(vendor[1]-'A'+1)<<5 | uint16(vendor[2]-'A'+1)
		b[8], b[9] = byte(packed>>8), byte(packed)
	}
	copy(b[72:], "\x00\x00\x00\xfc\x00"+name+"\n")
	return string(b)
}

func TestDisplaysTellWhoTheyAre(t *testing.T) {
	for name, row := range map[string]struct{ data, vendor, model string }{
		"a known maker":   {block("DEL", "DELL U2415"), "Dell", "DELL U2415"},
		"another maker":   {block("ABC", "X"), "ABC", "X"},
		"no maker":        {block("", "X"), "", ""},
		"no name":         {block("SAM", ""), "Samsung", ""},
		"half of a block": {block("SAM", "X")[:64], "", ""},
		"an empty file":   {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if vendor, model := edid(row.data); vendor != row.vendor || model != row.model {
				t.Errorf("%q, %q; want %q, %q", vendor, model, row.vendor, row.model)
			}
		})
	}
}
