// Package kind says in which way a value does not conform to a schema. It
// stands in for the package of the same name: compose-go tells these apart and
// prints them, so their names, fields and words are those of the original.
package kind

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"golang.org/x/text/message"
)

// Schema: the value as a whole; the errors beneath say why.
type Schema struct{}

// Type: the value is of another type than those wanted.
type Type struct {
	Got  string
	Want []string
}

// Enum: the value is none of those wanted.
type Enum struct{ Want []string }

// FalseSchema: nothing may be here.
type FalseSchema struct{}

// Required: properties are missing.
type Required struct{ Missing []string }

// AdditionalProperties: there are properties that the schema does not have.
type AdditionalProperties struct{ Properties []string }

// UniqueItems: two items are equal.
type UniqueItems struct{ Duplicates [2]int }

// OneOf: two schemas are conformed to of which only one may be.
type OneOf struct{ Subschemas [2]int }

// Pattern: a text does not match.
type Pattern struct{ Got, Want string }

// Minimum: a number is too small.
type Minimum struct {
	Got  float64
	Want *big.Rat
}

// Maximum: a number is too large.
type Maximum struct {
	Got  float64
	Want *big.Rat
}

// LocalizedString is what went wrong, always in English.
func (*Schema) LocalizedString(*message.Printer) string { return "validation failed" }

// LocalizedString is what went wrong, always in English.
func (k *Type) LocalizedString(*message.Printer) string {
	return fmt.Sprintf("got %s, want %s", k.Got, strings.Join(k.Want, " or "))
}

// LocalizedString is what went wrong, always in English.
func (k *Enum) LocalizedString(*message.Printer) string {
	if len(k.Want) == 1 {
		return "value must be " + quote(k.Want[0])
	}
	return "value must be one of " + quoteAll(k.Want)
}

// LocalizedString is what went wrong, always in English.
func (*FalseSchema) LocalizedString(*message.Printer) string { return "false schema" }

// LocalizedString is what went wrong, always in English.
func (k *Required) LocalizedString(*message.Printer) string {
	if len(k.Missing) == 1 {
		return "missing property " + quote(k.Missing[0])
	}
	return "missing properties " + quoteAll(k.Missing)
}

// LocalizedString is what went wrong, always in English.
func (k *AdditionalProperties) LocalizedString(*message.Printer) string {
	return "additional properties " + quoteAll(k.Properties) + " not allowed"
}

// LocalizedString is what went wrong, always in English.
func (k *UniqueItems) LocalizedString(*message.Printer) string {
	return fmt.Sprintf("items at %d and %d are equal", k.Duplicates[0], k.Duplicates[1])
}

// LocalizedString is what went wrong, always in English.
func (k *OneOf) LocalizedString(*message.Printer) string {
	return fmt.Sprintf("oneOf failed, subschemas %d, %d matched", k.Subschemas[0], k.Subschemas[1])
}

// LocalizedString is what went wrong, always in English.
func (k *Pattern) LocalizedString(*message.Printer) string {
	return quote(k.Got) + " does not match pattern " + quote(k.Want)
}

// LocalizedString is what went wrong, always in English.
func (k *Minimum) LocalizedString(*message.Printer) string {
	return fmt.Sprintf("minimum: got %v, want %s", k.Got, k.Want.RatString())
}

// LocalizedString is what went wrong, always in English.
func (k *Maximum) LocalizedString(*message.Printer) string {
	return fmt.Sprintf("maximum: got %v, want %s", k.Got, k.Want.RatString())
}

// quote puts a text between single quotes, on one line.
func quote(text string) string {
	inner := strconv.Quote(text)
	inner = inner[1 : len(inner)-1]
	return "'" + strings.NewReplacer(`\"`, `"`, `'`, `\'`).Replace(inner) + "'"
}

func quoteAll(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = quote(text)
	}
	return strings.Join(quoted, ", ")
}
