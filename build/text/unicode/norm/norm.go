// Package norm stands in for the one of the same name, as package bidirule does.
// It knows the normal form of ASCII; a text with other letters gets a hyphen in
// front, with which no name of a host may start.
package norm

import (
	"unicode/utf8"

	"golang.org/x/text/unicode/bidi"
)

// Form is a way to write the same letters.
type Form int

// NFC is the one that names of hosts have.
const NFC Form = 0

// IsNormalString says whether a text is known to have the form.
func (Form) IsNormalString(text string) bool { return bidi.IsASCII(text) }

// String brings a text into the form.
func (f Form) String(text string) string { return string(f.Bytes([]byte(text))) }

// QuickSpan is how many bytes at the start are known to have the form.
func (Form) QuickSpan(text []byte) int {
	for i, b := range text {
		if b >= utf8.RuneSelf {
			return i
		}
	}
	return len(text)
}

// Bytes brings a text into the form.
func (f Form) Bytes(text []byte) []byte {
	if f.QuickSpan(text) == len(text) {
		return text
	}
	return append([]byte{'-'}, text...)
}
