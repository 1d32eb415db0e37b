package compose

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Bounds of the Compose files of a project; all but the first are for all of them
// together. Real ones stay far below.
const (
	maxComposeFile = 512 << 10 // bytes of one file
	maxNodes       = 10_000    // with every alias counted as what it stands for
	maxText        = 512 << 10 // bytes of all scalars, aliases likewise
	maxDepth       = 64
)

// parse reads one YAML document that is a mapping, with aliases and merge keys
// resolved.
func parse(content []byte) (map[string]any, size, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, size{}, invalid("file is empty")
		}
		return nil, size{}, invalid("%w", err)
	}
	measured, err := (&measure{within: map[*yaml.Node]bool{}}).of(&document, 0)
	if err != nil {
		return nil, size{}, err
	}
	var tree map[string]any
	if err := document.Decode(&tree); err != nil {
		return nil, size{}, invalid("%w", err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, size{}, invalid("file has more than one YAML document")
	}
	return tree, measured, nil
}

var errTooLarge = invalid("project grows beyond %d YAML nodes or %d bytes of text", maxNodes, maxText)

// size is what a part of a document takes once its aliases are resolved.
type size struct {
	nodes, text int
}

func (s size) plus(other size) size { return size{s.nodes + other.nodes, s.text + other.text} }
func (s size) tooLarge() bool       { return s.nodes > maxNodes || s.text > maxText }

// measure finds out how large a document gets before it is made that large.
type measure struct {
	within map[*yaml.Node]bool // being measured: an alias to one holds itself
}

func (m *measure) of(n *yaml.Node, depth int) (size, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if depth > maxDepth {
		return size{}, invalid("line %d: nested more than %d levels deep", n.Line, maxDepth)
	}
	if m.within[n] {
		return size{}, invalid("line %d: alias holds itself", n.Line)
	}
	// Tags of Compose's own (!reset, !override) change how files are merged.
	if tag := n.ShortTag(); n.Kind != yaml.DocumentNode && tag != "" && !strings.HasPrefix(tag, "!!") {
		return size{}, invalid("line %d: tag %s is not supported", n.Line, tag)
	}
	m.within[n] = true
	defer delete(m.within, n)

	s := size{nodes: 1, text: len(n.Value)}
	for _, child := range n.Content {
		c, err := m.of(child, depth+1)
		if err != nil {
			return size{}, err
		}
		if s = s.plus(c); s.tooLarge() {
			return size{}, errTooLarge
		}
	}
	return s, nil
}
