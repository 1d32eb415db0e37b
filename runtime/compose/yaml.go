package compose

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// MaxFile is how many bytes a Compose file may have.
const MaxFile = 512 << 10

// Bounds of all Compose files of a project together. Real ones stay far below.
const (
	maxNodes = 10_000    // with every alias counted as what it stands for
	maxText  = 512 << 10 // bytes of all scalars, aliases likewise
	maxDepth = 64
)

// document is a YAML document that is a mapping.
type document struct {
	// tree has aliases and merge keys resolved, and is without what is !reset.
	tree map[string]any
	// substituted is tree with variables replaced.
	substituted map[string]any
	// text is the document itself, where compose-go is given that: it was asked for, or says
	// with !reset and !override how it is merged over others.
	text []byte
}

// ownKeys of the top level are not for compose-go.
var ownKeys = []string{"version", "name"}

// parse reads the documents of a file, each of which is merged over those before it. read grows by what they take.
// refer has the name by which compose-go is to know a file that is extended.
func parse(content []byte, read *size, asText bool, refer func(file string) string) ([]document, error) {
	var documents []document
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	for {
		node, err := nextDocument(decoder)
		switch {
		case errors.Is(err, io.EOF) && documents == nil:
			return nil, invalid("file is empty")
		case errors.Is(err, io.EOF):
			return documents, nil
		case err != nil:
			return nil, invalid("%w", err)
		}
		m := &measure{size: *read, within: map[*yaml.Node]bool{}}
		if err := m.add(node, 0); err != nil {
			return nil, err
		}
		*read = m.size
		referTo(node, refer)
		var d document
		if m.tagged || asText {
			if d.text, err = textOf(node); err != nil {
				return nil, err
			}
			withoutTags(node)
		}
		if err := node.Decode(&d.tree); err != nil {
			return nil, invalid("%w", err)
		}
		documents = append(documents, d)
	}
}

// nextDocument passes over empty documents, as a comment or a separator at the beginning or the end makes them.
func nextDocument(decoder *yaml.Decoder) (*yaml.Node, error) {
	for {
		var n yaml.Node
		if err := decoder.Decode(&n); err != nil || n.Content[0].ShortTag() != "!!null" {
			return &n, err
		}
	}
}

// textOf is a document without its ownKeys.
func textOf(node *yaml.Node) ([]byte, error) {
	if len(node.Content) != 1 || node.Content[0].Kind != yaml.MappingNode {
		return nil, invalid("file is not a mapping")
	}
	root := *node.Content[0]
	root.Content = nil
	for n := 0; n+1 < len(node.Content[0].Content); n += 2 {
		if key := node.Content[0].Content[n]; !slices.Contains(ownKeys, key.Value) {
			root.Content = append(root.Content, key, node.Content[0].Content[n+1])
		}
	}
	return marshal(&root)
}

// marshal is yaml.Marshal, which writes the null of {a: } as an empty text.
func marshal(n *yaml.Node) ([]byte, error) {
	spellNull(n)
	return yaml.Marshal(n)
}

func spellNull(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Value == "" && n.ShortTag() == "!!null" {
		n.Value = "null"
	}
	for _, child := range n.Content {
		spellNull(child)
	}
}

// withoutTags takes out what is !reset. What is !override stays, it differs only
// when it is merged.
func withoutTags(n *yaml.Node) {
	kept, step := n.Content[:0:0], 1
	if n.Kind == yaml.MappingNode {
		step = 2
	}
	for i := 0; i+step <= len(n.Content); i += step {
		child := n.Content[i+step-1]
		meant := child
		if child.Kind == yaml.AliasNode {
			meant = child.Alias
		}
		if meant.Tag == resetTag {
			continue
		}
		if meant.Tag == overrideTag {
			meant.Tag = ""
		}
		withoutTags(child)
		kept = append(kept, n.Content[i:i+step]...)
	}
	n.Content = kept
}

const (
	resetTag    = "!reset"
	overrideTag = "!override"
)

// size is what documents take once their aliases are resolved.
type size struct {
	nodes, text int
}

// measure finds out how large a document gets before it is made that large.
type measure struct {
	size                       // of what was measured
	within map[*yaml.Node]bool // being measured: an alias to one holds itself
	tagged bool                // !reset or !override was seen
}

func (m *measure) add(n *yaml.Node, depth int) error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if depth > maxDepth {
		return invalid("line %d: nested more than %d levels deep", n.Line, maxDepth)
	}
	if m.within[n] {
		return invalid("line %d: alias contains itself", n.Line)
	}
	switch tag := n.ShortTag(); {
	case n.Kind == yaml.DocumentNode, tag == "", strings.HasPrefix(tag, "!!"):
	case tag == resetTag, tag == overrideTag:
		m.tagged = true
	default:
		return invalid("line %d: tag %s is not supported", n.Line, tag)
	}
	m.within[n] = true
	defer delete(m.within, n)

	if m.nodes, m.text = m.nodes+1, m.text+len(n.Value); m.nodes > maxNodes || m.text > maxText {
		return invalid("project exceeds %d YAML nodes or %d bytes of text", maxNodes, maxText)
	}
	for _, child := range n.Content {
		if err := m.add(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}
