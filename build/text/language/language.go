// Package language stands in for the one of the same name, which compose-go
// links to print its errors in English.
package language

// Tag is a language, of which there is one.
type Tag struct{}

// English is that.
var English Tag
