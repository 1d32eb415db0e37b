// Package message stands in for the one of the same name, which compose-go
// links to print its errors in English. They are in English.
package message

import "golang.org/x/text/language"

// Printer has nothing to do.
type Printer struct{}

// NewPrinter returns a Printer.
func NewPrinter(language.Tag) *Printer { return &Printer{} }
