package margo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strconv"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// JSON and YAML documents are first read into one kind of tree, where bounds are kept and
// duplicate keys refused, and interpreted by walking it (see reader). Decoding into structs would
// do neither: encoding/json accepts duplicate keys and names in any case, and both decoders send
// large numbers through a float.

type kind uint8

const (
	absent kind = iota // the document has nothing there
	null
	boolean
	number
	text
	list
	object
	foreign // a YAML scalar that JSON has no counterpart for
)

func (k kind) String() string {
	return [...]string{"missing", "null", "a boolean", "a number", "a string", "a list", "an object", "a YAML value without a JSON counterpart"}[k]
}

type tree struct {
	kind    kind
	literal string // of a scalar: its content; a number of JSON as written, a number of YAML in JSON's form
	written string // of a YAML scalar: as written, without quotes
	items   []tree
	members []member // in the order of the document
}

type member struct {
	name  string
	value tree
}

const maxStream = 256

type limits struct {
	bytes int
	depth int // nesting
	nodes int // values of every kind, counted for each use of a YAML alias
}

func (l limits) fit(body []byte) error {
	switch {
	case len(body) > l.bytes:
		return fmt.Errorf("is larger than %d bytes", l.bytes)
	case !utf8.Valid(body):
		return errors.New("is not UTF-8")
	}
	return nil
}

type growth struct {
	limits
	nodes int
}

func (g *growth) node(depth int) error {
	if g.nodes++; g.nodes > g.limits.nodes {
		return fmt.Errorf("has more than %d values", g.limits.nodes)
	}
	if depth > g.depth {
		return fmt.Errorf("is nested deeper than %d levels", g.depth)
	}
	return nil
}

func parseJSON(body []byte, l limits) (tree, error) {
	if err := l.fit(body); err != nil {
		return tree{}, err
	}
	// The token reader below is laxer than the syntax.
	if err := json.Unmarshal(body, new(json.RawMessage)); err != nil {
		return tree{}, fmt.Errorf("is not JSON: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	return readJSON(decoder, &growth{limits: l}, 0)
}

func readJSON(decoder *json.Decoder, g *growth, depth int) (tree, error) {
	if err := g.node(depth); err != nil {
		return tree{}, err
	}
	token, err := decoder.Token()
	if err != nil {
		return tree{}, fmt.Errorf("is not JSON: %w", err)
	}
	switch token := token.(type) {
	case bool:
		return tree{kind: boolean, literal: strconv.FormatBool(token)}, nil
	case json.Number:
		return tree{kind: number, literal: token.String()}, nil
	case string:
		return tree{kind: text, literal: token}, nil
	case json.Delim:
		t := tree{kind: list}
		if token == '{' {
			t.kind = object
		}
		seen := map[string]bool{}
		for decoder.More() {
			var name string
			if t.kind == object {
				token, _ := decoder.Token() // that it is JSON is known
				name, _ = token.(string)
				if seen[name] {
					return tree{}, fmt.Errorf("has a duplicate key %.80q", name)
				}
				seen[name] = true
			}
			value, err := readJSON(decoder, g, depth+1)
			if err != nil {
				return tree{}, err
			}
			if t.kind == object {
				t.members = append(t.members, member{name, value})
			} else {
				t.items = append(t.items, value)
			}
		}
		_, err := decoder.Token() // of the end
		return t, err
	}
	return tree{kind: null}, nil
}

// parseYAML reads exactly one YAML document. Aliases are followed, since some serialisers write
// them for repeated lists; each use counts, so that a small document cannot become a large tree.
func parseYAML(body []byte, l limits) (tree, error) {
	documents, err := yamlDocuments(body, l)
	switch {
	case err != nil:
		return tree{}, err
	case len(documents) == 0:
		return tree{}, errors.New("is empty")
	case len(documents) > 1:
		return tree{}, errors.New("has more than one YAML document")
	}
	return readYAML(documents[0], &growth{limits: l}, 0)
}

// yamlDocuments skips empty documents, which comments and separators at the beginning or end
// make.
func yamlDocuments(body []byte, l limits) (documents []*yaml.Node, err error) {
	if err := l.fit(body); err != nil {
		return nil, err
	}
	if weigh(body) > l.nodes { // checked afterwards it would be too late
		return nil, fmt.Errorf("has more than %d values", l.nodes)
	}
	for decoder := yaml.NewDecoder(bytes.NewReader(body)); ; {
		var n yaml.Node
		err := decoder.Decode(&n)
		switch {
		case errors.Is(err, io.EOF):
			return documents, nil
		case err != nil:
			return nil, fmt.Errorf("is not YAML: %s", Shown(err.Error(), 200))
		case n.Content[0].ShortTag() == "!!null":
		case len(documents) == maxStream:
			return nil, fmt.Errorf("has more than %d YAML documents", maxStream)
		default:
			documents = append(documents, &n)
		}
	}
}

func readYAML(n *yaml.Node, g *growth, depth int) (tree, error) {
	if err := g.node(depth); err != nil {
		return tree{}, err
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return readYAML(n.Content[0], g, depth)
	case yaml.AliasNode:
		return readYAML(n.Alias, g, depth+1)
	case yaml.SequenceNode:
		t := tree{kind: list}
		for _, item := range n.Content {
			value, err := readYAML(item, g, depth+1)
			if err != nil {
				return tree{}, err
			}
			t.items = append(t.items, value)
		}
		return t, nil
	case yaml.MappingNode:
		t := tree{kind: object}
		seen := map[string]bool{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
				return tree{}, fmt.Errorf("has a key that is not a plain name in line %d", key.Line)
			}
			if seen[key.Value] {
				return tree{}, fmt.Errorf("has a duplicate key %.80q, again in line %d", key.Value, key.Line)
			}
			seen[key.Value] = true
			value, err := readYAML(n.Content[i+1], g, depth+1)
			if err != nil {
				return tree{}, err
			}
			t.members = append(t.members, member{key.Value, value})
		}
		return t, nil
	case yaml.ScalarNode:
		return readScalar(n), nil
	}
	return tree{kind: foreign}, nil
}

func readScalar(n *yaml.Node) tree {
	t := tree{kind: foreign, written: n.Value}
	switch n.ShortTag() {
	case "!!null":
		t.kind = null
	case "!!bool":
		var b bool
		if n.Decode(&b) == nil {
			t.kind, t.literal = boolean, strconv.FormatBool(b)
		}
	case "!!int":
		var signed int64
		var unsigned uint64
		if n.Decode(&signed) == nil {
			t.kind, t.literal = number, strconv.FormatInt(signed, 10)
		} else if n.Decode(&unsigned) == nil {
			t.kind, t.literal = number, strconv.FormatUint(unsigned, 10)
		}
	case "!!float":
		var f float64
		if i, ok := new(big.Int).SetString(n.Value, 10); ok { // beyond 64 bits, where a float would round
			t.kind, t.literal = number, i.String()
		} else if n.Decode(&f) == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
			t.kind, t.literal = number, strconv.FormatFloat(f, 'f', -1, 64)
		}
	case "!!str", "!!timestamp": // dates are not a kind of value of these documents
		t.kind, t.literal = text, n.Value
	}
	return t
}

// json is a tree as compact JSON, with its members in order.
func (t tree) json() []byte {
	b := []byte("null")
	switch t.kind {
	case boolean, number:
		b = []byte(t.literal)
	case text:
		b, _ = marshalJSON(t.literal) // a string always has a JSON form
	case list:
		var items [][]byte
		for _, item := range t.items {
			items = append(items, item.json())
		}
		b = slices.Concat([]byte("["), bytes.Join(items, []byte(",")), []byte("]"))
	case object:
		var members [][]byte
		for _, m := range t.members {
			name := tree{kind: text, literal: m.name}
			members = append(members, slices.Concat(name.json(), []byte(":"), m.value.json()))
		}
		b = slices.Concat([]byte("{"), bytes.Join(members, []byte(",")), []byte("}"))
	}
	return b
}

// marshalJSON is json.Marshal without the escapes that only HTML needs.
func marshalJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
