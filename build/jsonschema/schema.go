// Package jsonschema stands in for the one of the same name, which compose-go
// links to hold Compose files against the Compose specification: half a megabyte
// on arm v7 with its texts for other languages. This one knows the keywords that
// the specification uses, and refuses a schema with any other.
package jsonschema

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strings"
)

// annotations are keywords that say nothing about values.
var annotations = []string{"$schema", "$id", "$defs", "title", "description", "default", "deprecated"}

// Schema is what values are held against. The zero Schema allows all of them.
type Schema struct {
	nothing bool // the schema `false`

	types            []string
	enum             []string
	ref              *Schema
	minimum, maximum *big.Rat
	pattern          *regexp.Regexp

	required    []string
	properties  map[string]*Schema
	patterns    []patterned
	additional  *Schema // of properties not in the two above; nil allows all
	unevaluated *Schema // of those that no schema within this one allows, either

	items  *Schema
	unique bool

	allOf, anyOf, oneOf []*Schema
}

// patterned is the schema of properties whose names match.
type patterned struct {
	name   *regexp.Regexp
	schema *Schema
}

// Format is a form of texts. No format is checked, as in draft 2020-12.
type Format struct {
	Name     string
	Validate func(v any) error
}

// UnmarshalJSON reads one JSON value.
func UnmarshalJSON(r io.Reader) (any, error) {
	var value any
	decoder := json.NewDecoder(r)
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one JSON value")
	}
	return value, nil
}

// Compiler makes a Schema of a JSON document.
type Compiler struct {
	resources map[string]any
}

// NewCompiler returns one that has no documents.
func NewCompiler() *Compiler { return &Compiler{resources: map[string]any{}} }

// AddResource adds a document, as UnmarshalJSON reads it.
func (c *Compiler) AddResource(name string, document any) error {
	c.resources[name] = document
	return nil
}

// RegisterFormat does nothing, see Format.
func (c *Compiler) RegisterFormat(*Format) {}

// Compile returns the schema that a document is. Its references lead to the
// definitions of the same document.
func (c *Compiler) Compile(name string) (*Schema, error) {
	document, is := c.resources[name].(map[string]any)
	if !is {
		return nil, fmt.Errorf("cannot compile schema %s: there is no such document", name)
	}
	defs, _ := document["$defs"].(map[string]any)
	r := &reading{defs: defs, referred: map[string]*Schema{}, expressions: map[string]*regexp.Regexp{}}
	s := r.schema(document)
	if r.err != nil {
		return nil, fmt.Errorf("cannot compile schema %s: %w", name, r.err)
	}
	return s, nil
}

// reading is a Compile under way. The first error stays.
type reading struct {
	defs        map[string]any
	referred    map[string]*Schema
	expressions map[string]*regexp.Regexp
	err         error
}

func (r *reading) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *reading) schema(value any) *Schema {
	s := &Schema{}
	r.into(s, value)
	return s
}

func (r *reading) into(s *Schema, value any) {
	if allows, is := value.(bool); is {
		s.nothing = !allows
		return
	}
	keywords, is := value.(map[string]any)
	if !is {
		r.fail("%v is no schema", value)
	}
	for keyword, value := range keywords {
		switch keyword {
		case "type":
			if name, is := value.(string); is {
				s.types = []string{name}
				break
			}
			s.types = r.texts(keyword, value)
		case "enum":
			s.enum = r.texts(keyword, value)
		case "$ref":
			s.ref = r.reference(value)
		case "minimum":
			s.minimum = r.integer(keyword, value)
		case "maximum":
			s.maximum = r.integer(keyword, value)
		case "pattern":
			s.pattern = r.expression(value)
		case "required":
			s.required = r.texts(keyword, value)
		case "properties":
			s.properties = map[string]*Schema{}
			for name, property := range r.object(keyword, value) {
				s.properties[name] = r.schema(property)
			}
		case "patternProperties":
			properties := r.object(keyword, value)
			for _, name := range slices.Sorted(maps.Keys(properties)) {
				s.patterns = append(s.patterns, patterned{r.expression(name), r.schema(properties[name])})
			}
		case "additionalProperties":
			s.additional = r.schema(value)
		case "unevaluatedProperties":
			s.unevaluated = r.schema(value)
		case "items":
			s.items = r.schema(value)
		case "uniqueItems":
			s.unique = value == true
		case "allOf":
			s.allOf = r.schemas(keyword, value)
		case "anyOf":
			s.anyOf = r.schemas(keyword, value)
		case "oneOf":
			s.oneOf = r.schemas(keyword, value)
		default:
			if !slices.Contains(annotations, keyword) {
				r.fail("the keyword %s is not known here", keyword)
			}
		}
	}
}

func (r *reading) object(keyword string, value any) map[string]any {
	object, is := value.(map[string]any)
	if !is {
		r.fail("%s is no object", keyword)
	}
	return object
}

func (r *reading) list(keyword string, value any) []any {
	list, is := value.([]any)
	if !is || len(list) == 0 {
		r.fail("%s is no list, or empty", keyword)
	}
	return list
}

func (r *reading) schemas(keyword string, value any) (all []*Schema) {
	for _, element := range r.list(keyword, value) {
		all = append(all, r.schema(element))
	}
	return all
}

func (r *reading) texts(keyword string, value any) (all []string) {
	for _, element := range r.list(keyword, value) {
		text, is := element.(string)
		if !is {
			r.fail("%s has other elements than texts", keyword)
		}
		all = append(all, text)
	}
	return all
}

func (r *reading) integer(keyword string, value any) *big.Rat {
	number, is := value.(float64)
	if !is || number != float64(int64(number)) {
		r.fail("%s is no integer", keyword)
	}
	return big.NewRat(int64(number), 1)
}

// expression compiles each regular expression once.
func (r *reading) expression(value any) *regexp.Regexp {
	text, _ := value.(string)
	if r.expressions[text] == nil {
		expression, err := regexp.Compile(text)
		if err != nil || text == "" {
			r.fail("cannot use pattern %v: %v", value, err)
		}
		r.expressions[text] = expression
	}
	return r.expressions[text]
}

// reference reads each definition once, also those that refer to themselves.
func (r *reading) reference(value any) *Schema {
	text, _ := value.(string)
	name, inDefs := strings.CutPrefix(text, "#/$defs/")
	definition, there := r.defs[name]
	if !inDefs || !there {
		r.fail("the reference %v does not lead to a definition", value)
		return nil
	}
	if r.referred[name] == nil {
		r.referred[name] = &Schema{}
		r.into(r.referred[name], definition)
	}
	return r.referred[name]
}
