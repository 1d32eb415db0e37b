package compose

import (
	"strings"
	"unicode"

	"github.com/compose-spec/compose-go/v2/template"
)

// parseEnvFile reads a file of variables (.env, env_file) as Compose does: lines
// of KEY=VALUE, values bare, in single quotes (taken as they are) or in double
// quotes (with escapes), a KEY alone taken from lookup. What lookup knows goes
// before what the file says when a value refers to other variables.
func (i *interpolator) parseEnvFile(content string, lookup template.Mapping) (map[string]string, error) {
	vars := map[string]string{}
	refer := func(name string) (string, bool) {
		if value, ok := lookup(name); ok {
			return value, true
		}
		value, ok := vars[name]
		return value, ok
	}
	rest := strings.TrimPrefix(content, "\ufeff")
	for line := 1; rest != ""; {
		statement, after, _ := strings.Cut(rest, "\n")
		statement = strings.TrimSpace(statement)
		if export, ok := strings.CutPrefix(statement, "export"); ok && export != strings.TrimLeft(export, " \t") {
			statement = strings.TrimLeft(export, " \t")
		}
		if statement == "" || statement[0] == '#' {
			rest = after
			line++
			continue
		}
		name, value, assigned := cutAssignment(statement)
		if !isVariableName(name) {
			return nil, invalid("line %d: malformed variable name", line) // the line may hold a secret
		}
		if !assigned {
			if value, ok := lookup(name); ok {
				vars[name] = value
			}
			rest = after
			line++
			continue
		}
		if value == "" || value[0] != '"' && value[0] != '\'' {
			value, _, _ = strings.Cut(value, " #")
			expanded, err := i.substitute(strings.TrimSpace(value), refer)
			if err != nil {
				return nil, invalid("line %d: %w", line, err)
			}
			vars[name] = expanded
			rest = after
			line++
			continue
		}
		// A quoted value may go on over lines: read on from the quote.
		from := len(rest) - len(after) // behind the first line
		quoted := rest[strings.Index(rest[:from], value):]
		text, length := unquote(quoted)
		if length < 0 {
			return nil, invalid("line %d: closing quote is missing", line)
		}
		behind, after, _ := strings.Cut(quoted[length:], "\n")
		if behind = strings.TrimSpace(behind); behind != "" && behind[0] != '#' {
			return nil, invalid("line %d: unexpected text after the closing quote", line)
		}
		if value[0] == '"' {
			expanded, err := i.substitute(text, refer)
			if err != nil {
				return nil, invalid("line %d: %w", line, err)
			}
			text = expanded
		}
		vars[name] = text
		line += 1 + strings.Count(quoted[:length], "\n")
		rest = after
	}
	return vars, nil
}

// cutAssignment splits KEY=VALUE, or KEY: VALUE as some files have it.
func cutAssignment(statement string) (name, value string, assigned bool) {
	at := strings.IndexAny(statement, "=:")
	if at < 0 {
		return statement, "", false
	}
	return strings.TrimSpace(statement[:at]), strings.TrimSpace(statement[at+1:]), true
}

func isVariableName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsNumber(r) && !strings.ContainsRune("_.-[]", r)
	})
}

// unquote reads the quoted value at the start of s. It returns the value, in
// which "$$" stands for a dollar sign when the quotes are double ones, and the
// length of what it read, -1 without a closing quote.
func unquote(s string) (text string, length int) {
	quote := s[0]
	var out strings.Builder
	for n := 1; n < len(s); n++ {
		switch c := s[n]; {
		case c == quote:
			return out.String(), n + 1
		case c != '\\' || n+1 == len(s):
			out.WriteByte(c)
		default:
			n++
			out.WriteString(unescape(s[n], quote))
		}
	}
	return "", -1
}

func unescape(c, quote byte) string {
	if c == quote {
		return string(c)
	}
	if quote == '"' {
		switch c {
		case 'n':
			return "\n"
		case 'r':
			return "\r"
		case 't':
			return "\t"
		case '\\':
			return `\`
		case '$':
			return "$$"
		}
	}
	return `\` + string(c)
}
