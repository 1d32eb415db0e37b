package compose

import (
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v4"
)

// writeYAML writes a mapping without its comments. The library's own
// writer takes 80 KB, for styles that nothing here needs.
func writeYAML(root *yaml.Node) []byte {
	if len(root.Content) == 0 {
		return []byte("{}\n")
	}
	w := &yamlWriter{}
	w.content(root, 0, true)
	w.text.WriteByte('\n')
	return []byte(w.text.String())
}

type yamlWriter struct {
	text strings.Builder
}

// value writes what is behind a key or a dash, whose line is indented as given.
func (w *yamlWriter) value(n *yaml.Node, indent int, dash bool) {
	if n.Kind == yaml.AliasNode {
		w.text.WriteString(" *" + n.Value)
		return
	}
	if n.Anchor != "" {
		w.text.WriteString(" &" + n.Anchor)
	}
	tagged := n.Style&yaml.TaggedStyle != 0 && n.Tag != ""
	if tagged {
		w.text.WriteString(" " + n.Tag)
	}
	switch {
	case n.Kind == yaml.ScalarNode:
		w.text.WriteString(" " + scalar(n, tagged))
	case len(n.Content) == 0 && n.Kind == yaml.SequenceNode:
		w.text.WriteString(" []")
	case len(n.Content) == 0:
		w.text.WriteString(" {}")
	case dash && !tagged && n.Anchor == "":
		w.text.WriteByte(' ')
		w.content(n, indent+2, true)
	default:
		w.content(n, indent+2, false)
	}
}

// content writes the lines of a mapping or a sequence; the first of them may be
// begun.
func (w *yamlWriter) content(n *yaml.Node, indent int, begun bool) {
	for i := 0; i < len(n.Content); i++ {
		if !begun {
			w.text.WriteString("\n" + strings.Repeat(" ", indent))
		}
		begun = false
		if n.Kind == yaml.SequenceNode {
			w.text.WriteByte('-')
			w.value(n.Content[i], indent, true)
			continue
		}
		key := n.Content[i]
		if key.Kind == yaml.AliasNode {
			w.text.WriteString("*" + key.Value + " :")
		} else {
			if key.Anchor != "" {
				w.text.WriteString("&" + key.Anchor + " ")
			}
			tagged := key.Style&yaml.TaggedStyle != 0 && key.Tag != ""
			if tagged {
				w.text.WriteString(key.Tag + " ")
			}
			w.text.WriteString(scalar(key, tagged) + ":")
		}
		i++
		w.value(n.Content[i], indent, false)
	}
}

// scalar is the value of n. Text is in quotes wherever it could be something else
// to anybody.
func scalar(n *yaml.Node, tagged bool) string {
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	switch {
	case tagged && n.Style&quoted == 0 && !isText(n.Value), !tagged && n.ShortTag() != "!!str":
		return n.Value // as it was read
	case !tagged && isPlain(n.Value):
		return n.Value
	}
	return strconv.Quote(n.Value)
}

// isText says whether what stands without quotes is text.
func isText(plain string) bool {
	var read any
	err := yaml.Unmarshal([]byte(plain), &read)
	_, is := read.(string)
	return is || err != nil
}

// isPlain says whether text is the same without quotes, in YAML 1.1 too.
func isPlain(text string) bool {
	switch strings.ToLower(text) {
	case "", "y", "n", "yes", "no", "on", "off":
		return false
	}
	if first := text[0]; first != '/' && !unicode.IsLetter(rune(first)) || strings.HasSuffix(text, ":") {
		return false
	}
	for _, c := range []byte(text) {
		if c >= 0x80 || !unicode.IsLetter(rune(c)) && !unicode.IsDigit(rune(c)) && !strings.ContainsRune("/._-:=@+", rune(c)) {
			return false
		}
	}
	return isText(text)
}
