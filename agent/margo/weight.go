package margo

import (
	"bytes"
	"strings"
)

// weigh bounds a YAML text before it is parsed: it has at most two nodes per unit of weight. The
// YAML parser has no bound of its own, and takes a kilobyte of memory for what can be two bytes
// of text: 256 KiB of "[a,a,a..." would be 170 MiB.
//
// Only the content of block scalars, which embed texts and files, weighs nothing, and only as
// long as it certainly is that: from the first line of unusual form on everything counts.
func weigh(body []byte) int {
	weight := 0
	// Other line breaks of YAML, and bytes that the parser skips.
	certain := !bytes.ContainsAny(body, "\u0085\u2028\u2029\ufeff") &&
		bytes.Count(body, []byte{'\r'}) == bytes.Count(body, []byte("\r\n"))
	scalar := -1 // the column that the lines of a block scalar are right of; -1: not in one
	for rest := body; len(rest) > 0; {
		var raw []byte
		raw, rest, _ = bytes.Cut(rest, []byte{'\n'})
		line := strings.TrimRight(string(raw), " \r")
		text := strings.TrimLeft(line, " ")
		if text == "" {
			continue
		}
		column := len(line) - len(text)
		if scalar >= 0 && column > scalar {
			continue
		}
		scalar = -1
		weight++
		for i := range len(text) {
			switch text[i] {
			case ',', '[', '{': // parsed at twice the cost
				weight += 2
			case ':', '?', '\r', '&', '*', '!':
				weight++
			case '-':
				if i > 0 && (i+1 == len(text) || text[i+1] == ' ' || text[i+1] == '\t') {
					weight++
				}
			case 0xc2, 0xe2: // may begin a line break
				weight++
			}
		}
		if certain = certain && !strings.Contains(text, "\t"); !certain {
			continue
		}
		var begins bool
		if column, begins, certain = blockLine(text, column); begins {
			scalar = column
		}
	}
	return weight
}

// blockLine looks at a line outside of quotes, brackets and block scalars. certain says that the
// next line is outside as well, unless this one begins a block scalar, whose lines are right of
// the column.
func blockLine(text string, at int) (column int, begins, certain bool) {
	if text[0] == '#' || text == "---" {
		return 0, false, true
	}
	dashes := 0
	for strings.HasPrefix(text, "- ") {
		rest := strings.TrimLeft(text[1:], " ")
		column = at // of the last dash
		at += len(text) - len(rest)
		text = rest
		dashes++
	}
	if text == "-" {
		return 0, false, true
	}
	value := text
	if key, after, found := strings.Cut(text, ":"); found && only(lower+upper+digits+"_./-", key) && key[0] != '-' && key[0] != '.' {
		if after == "" {
			return 0, false, true
		}
		if after[0] != ' ' {
			return 0, false, !strings.Contains(after, ": ") && !strings.HasSuffix(after, ":") // plain text, such as a URL
		}
		value, column = strings.TrimLeft(after, " "), at
	} else if dashes == 0 {
		return 0, false, isWordStart(text[0]) && !strings.Contains(text, ": ") && !strings.HasSuffix(text, ":")
	}
	switch first := value[0]; {
	case first == '|' || first == '>':
		header := strings.Trim(value[1:], "+-123456789") == "" && len(value) <= 3
		return column, header, header
	case first == '"' || first == '\'':
		return 0, false, len(value) > 1 && strings.IndexByte(value[1:], first) == len(value)-2 && !strings.Contains(value, `\`)
	case first == '[' || first == '{':
		return 0, false, isFlow(value)
	case value == text: // a list
		return 0, false, isWordStart(first) && !strings.Contains(value, ": ") && !strings.HasSuffix(value, ":")
	}
	return 0, false, isWordStart(value[0])
}

// isWordStart reports whether c can only begin plain text.
func isWordStart(c byte) bool { return strings.IndexByte(lower+upper+digits+"_/", c) >= 0 }

// isFlow reports whether a text is one list or object in brackets, without quotes or comments.
func isFlow(s string) bool {
	if strings.ContainsAny(s, `"'#`) {
		return false
	}
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth == 0 {
				return i == len(s)-1
			}
		}
	}
	return false
}
