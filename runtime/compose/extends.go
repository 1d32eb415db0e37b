package compose

import (
	"bytes"
	"errors"
	"io"

	"go.yaml.in/yaml/v4"
)

// refer makes services extend files by other names: those that paths has for what
// is written.
func (d *document) refer(paths map[string]string) (err error) {
	if len(paths) == 0 {
		return nil
	}
	for _, service := range mappings(d.tree["services"]) {
		extends, _ := service["extends"].(map[string]any)
		if written, ok := extends["file"].(string); ok && paths[written] != "" {
			// Aliases may share it with others: these name the same file.
			extends["file"] = paths[written]
		}
	}
	if d.tagged != nil {
		d.tagged, err = referring(d.tagged, paths)
	}
	return err
}

// referring is refer for the text of a file, without documents that are empty: compose-go refuses them.
func referring(content []byte, paths map[string]string) ([]byte, error) {
	var text []byte
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	for {
		node, err := nextDocument(decoder)
		if errors.Is(err, io.EOF) {
			return text, nil
		}
		if err != nil {
			return nil, invalid("%w", err)
		}
		referTo(node, paths)
		one, err := marshal(node.Content[0])
		if err != nil {
			return nil, err
		}
		text = append(append(text, "---\n"...), one...)
	}
}

// referTo changes every extends.file below n, also of what only aliases bring
// into services: an anchor stands before them in the same file.
func referTo(n *yaml.Node, paths map[string]string) {
	for i, child := range n.Content {
		referTo(child, paths)
		if n.Kind != yaml.MappingNode || i%2 == 0 || n.Content[i-1].Value != "extends" {
			continue
		}
		if child.Kind == yaml.AliasNode {
			child = child.Alias
		}
		for k := 0; k+1 < len(child.Content) && child.Kind == yaml.MappingNode; k += 2 {
			file := child.Content[k+1]
			if file.Kind == yaml.AliasNode {
				file = &yaml.Node{Kind: yaml.ScalarNode, Value: file.Alias.Value}
			}
			if abs := paths[file.Value]; child.Content[k].Value == "file" && file.Kind == yaml.ScalarNode && abs != "" {
				file.SetString(abs)
				child.Content[k+1] = file
			}
		}
	}
}
