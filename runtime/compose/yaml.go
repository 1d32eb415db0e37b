package compose

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// MaxFile is the maximum size of a Compose file in bytes.
const MaxFile = 512 << 10

// Bounds of all Compose files of a project together, far above real ones.
const (
	maxNodes = 10_000    // with every alias counted as what it stands for
	maxText  = 512 << 10 // bytes of all scalars, aliases likewise
	maxDepth = 64
)

// ownKeys are top-level keys that compose-go does not get.
var ownKeys = []string{"version", "name"}

// size is the size of documents with resolved aliases.
type size struct {
	nodes, text int
}

// reading resolves aliases and variables in documents.
type reading struct {
	*size
	// value replaces the text at the path of keys.
	value    func(at []string, written string) (string, error)
	within   map[*yaml.Node]bool // being read: an alias to one holds itself
	failures []error             // of value
}

// document is the part of a Compose file that is not left to compose-go.
type document struct {
	Version any       `yaml:"version"`
	Name    any       `yaml:"name"`
	Include yaml.Node `yaml:"include"`
}

// parse reads a file's documents. text has all of them, each to be merged over those before it.
func (r *reading) parse(content []byte) (documents []document, text []byte, err error) {
	r.within = map[*yaml.Node]bool{}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	for {
		var read yaml.Node
		switch err := decoder.Decode(&read); {
		case errors.Is(err, io.EOF) && documents == nil:
			return nil, nil, invalid("file is empty")
		case errors.Is(err, io.EOF):
			return documents, text, errors.Join(r.failures...)
		case err != nil:
			return nil, nil, invalid("%w", err)
		case read.Content[0].ShortTag() == "!!null":
			continue // empty, as a comment or a separator at the beginning or the end makes it
		}
		node, err := r.plain(read.Content[0], nil, 0, false)
		if err != nil {
			return nil, nil, err
		}
		var d document
		if err := node.Decode(&d); err != nil {
			return nil, nil, invalid("%w", err)
		}
		documents = append(documents, d)
		if removeOwnKeys(node); len(node.Content) > 0 {
			part, err := yaml.Marshal(node)
			if err != nil {
				return nil, nil, invalid("%w", err)
			}
			text = append(append(text, "---\n"...), part...)
		}
	}
}

func removeOwnKeys(root *yaml.Node) {
	for i := len(root.Content) - 2; i >= 0; i -= 2 {
		if slices.Contains(ownKeys, root.Content[i].Value) {
			root.Content = slices.Delete(root.Content, i, i+2)
		}
	}
}

const (
	resetTag    = "!reset"
	overrideTag = "!override"
)

// scalarTags are for values; the library takes one with another tag as an unchecked text.
var scalarTags = []string{"!!str", "!!binary", "!!null", "!!bool", "!!int", "!!float", "!!timestamp"}

// plain copies n with aliases and variables (not in keys) replaced, after checking its size.
func (r *reading) plain(n *yaml.Node, at []string, depth int, isKey bool) (*yaml.Node, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if depth > maxDepth {
		return nil, invalid("line %d: nested more than %d levels deep", n.Line, maxDepth)
	}
	if r.within[n] {
		return nil, invalid("line %d: alias contains itself", n.Line)
	}
	r.within[n] = true
	defer delete(r.within, n)
	if r.nodes, r.text = r.nodes+1, r.text+len(n.Value); r.nodes > maxNodes || r.text > maxText {
		return nil, invalid("project exceeds %d YAML nodes or %d bytes of text", maxNodes, maxText)
	}

	plain := *n
	plain.Anchor, plain.Content = "", nil
	if n.Tag == overrideTag {
		plain.Tag = ""
	}
	switch tag := plain.ShortTag(); {
	case tag == resetTag: // whatever it holds
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: resetTag, Value: "null"}, nil
	case tag != "" && !strings.HasPrefix(tag, "!!"), n.Kind == yaml.ScalarNode && !isKey && !slices.Contains(scalarTags, tag):
		return nil, invalid("line %d: tag %s is not supported", n.Line, tag)
	case tag == "!!null":
		plain.Value = "null" // the library writes that of {a: } as an empty text
	case (tag == "!!str" || tag == "!!binary") && !isKey:
		var written string
		if err := plain.Decode(&written); err != nil {
			return nil, invalid("%w", err)
		}
		value, err := r.value(at, written)
		if err != nil {
			r.failures = append(r.failures, err)
		} else if value != written {
			plain.SetString(value)
			plain.Style = yaml.DoubleQuotedStyle // in which every text can be written
		}
	}
	for i, child := range n.Content {
		below, isKey := at, isKey
		switch {
		case n.Kind == yaml.SequenceNode:
		case i%2 == 0:
			isKey = true
		case plain.Content[i-1].Value != "<<": // merged keys are keys of the mapping that they are merged into
			below = append(slices.Clip(at), plain.Content[i-1].Value)
		}
		child, err := r.plain(child, below, depth+1, isKey)
		if err != nil {
			return nil, err
		}
		plain.Content = append(plain.Content, child)
	}
	if n.Tag == overrideTag {
		plain.Tag = overrideTag
	}
	return &plain, nil
}
