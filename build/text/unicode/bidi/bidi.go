// Package bidi stands in for the one of the same name, as bidirule does.
package bidi

import "unicode/utf8"

// Direction is one in which texts are written.
type Direction int

// The directions that are told apart.
const (
	LeftToRight Direction = iota
	RightToLeft
)

// Class is what kind of letter one is.
type Class uint

// The classes that are told apart.
const (
	L Class = iota
	R
	AL
	AN
)

// Properties are those of a letter.
type Properties struct{ class Class }

// Class of the letter.
func (p Properties) Class() Class { return p.class }

// LookupString returns the properties of the first letter of a text, and its
// length in bytes.
func LookupString(text string) (Properties, int) {
	letter, size := utf8.DecodeRuneInString(text)
	if letter >= utf8.RuneSelf {
		return Properties{R}, size
	}
	return Properties{L}, size
}

// IsASCII says whether a text has letters of ASCII only. The original has no
// such function.
func IsASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
