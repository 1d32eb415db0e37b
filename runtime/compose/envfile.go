package compose

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
)

const maxEnvFile = 256 << 10 // bytes of .env and env_file

// ReadEnv reads a file of variables as if it were .env; environment overrides it in references.
func ReadEnv(ctx context.Context, path string, environment map[string]string) (map[string]string, error) {
	vars, err := (&files{}).readEnv(path, newInterpolator(ctx).parseEnvFile, types.Mapping(environment).Resolve)
	if err != nil {
		return nil, fmt.Errorf("cannot read variables: %w", err)
	}
	return vars, nil
}

// readEnv reads a file of variables, whose values may refer to lookup.
func (f *files) readEnv(abs string, parse func(string, template.Mapping) (map[string]string, error), lookup template.Mapping) (map[string]string, error) {
	content, err := f.read(abs, maxEnvFile)
	if err != nil {
		return nil, err
	}
	vars, err := parse(string(content), lookup)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", abs, err)
	}
	return vars, nil
}

// statement is an empty line or comment, or KEY, KEY=VALUE or KEY: VALUE, where a quoted value
// may span lines. Groups: key, sign, value in double quotes, in single quotes, unquoted.
var statement = regexp.MustCompile(`^[ \t\r]*(?:#[^\n]*|(?:export[ \t]+)?([\pL\pN_.\[\]-]+)` +
	`(?:[ \t]*([=:])[ \t]*(?:(?:"((?:[^"\\]|\\(?s:.))*)"|'((?:[^'\\]|\\(?s:.))*)')[ \t\r]*(?:#[^\n]*)?|([^\n]*)))?)?[ \t\r]*(?:\n|$)`)

// parseEnvFile parses a file of variables (.env, env_file) as Compose does: values unquoted,
// in single quotes (literal) or in double quotes (with escapes); a lone KEY is taken from
// lookup. In references, lookup overrides the file. compose-go's own parser puts the line,
// which may hold a secret, into errors and the global logger.
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
		m := statement.FindStringSubmatch(rest)
		if m == nil {
			return nil, invalid("line %d: malformed variable name", line)
		}
		name, double, single, bare := m[1], m[3], m[4], m[5]
		switch {
		case name == "":
		case m[2] == "":
			if value, ok := lookup(name); ok {
				vars[name] = value
			}
		case single != "":
			vars[name] = strings.ReplaceAll(single, `\'`, `'`)
		case bare != "" && strings.ContainsRune(`"'`, rune(bare[0])):
			return nil, invalid("line %d: closing quote is missing, or followed by text", line)
		default:
			bare, _, _ = strings.Cut(bare, " #")
			value, err := i.substitute(escapes.Replace(double)+strings.TrimSpace(bare), refer) // one of them is empty
			if err != nil {
				return nil, invalid("line %d: %w", line, err)
			}
			vars[name] = value
		}
		line += strings.Count(m[0], "\n")
		rest = rest[len(m[0]):]
	}
	return vars, nil
}

// escapes are those in double quotes; $$ stands for a dollar sign.
var escapes = strings.NewReplacer(`\"`, `"`, `\n`, "\n", `\r`, "\r", `\t`, "\t", `\\`, `\`, `\$`, "$$")

// parseRaw parses the format raw: literal lines of KEY=VALUE; a lone KEY is taken from lookup.
func parseRaw(content string, lookup template.Mapping) (map[string]string, error) {
	vars := map[string]string{}
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(content, "\ufeff")) {
		number++
		line = strings.TrimLeft(strings.TrimRight(line, "\r\n"), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, assigned := strings.Cut(line, "=")
		if name == "" || strings.ContainsAny(name, " \t") {
			return nil, invalid("line %d: malformed variable name", number) // the line may hold a secret
		}
		if !assigned {
			value, assigned = lookup(name)
		}
		if assigned {
			vars[name] = value
		}
	}
	return vars, nil
}
