package compose

import (
	"cmp"
	"path/filepath"
)

type include struct {
	paths    []string // absolute
	envFiles []string // absolute; none: .env in dir
	dir      string   // where relative paths in the files start
}

// includesOf returns the includes of a document, whose paths are absolute, or "" if refused.
func includesOf(d document) (all []include, err error) {
	var list []any
	if tag := d.Include.ShortTag(); tag == resetTag || tag == "!!null" {
		return nil, nil
	}
	if err := d.Include.Decode(&list); err != nil {
		return nil, invalid("include: %w", err)
	}
	for _, element := range list {
		entry, ok := element.(map[string]any)
		if !ok {
			entry = map[string]any{"path": element}
		}
		i := include{paths: stringsOf(entry["path"]), envFiles: stringsOf(entry["env_file"])}
		if len(i.paths) == 0 {
			continue
		}
		dir, _ := entry["project_directory"].(string)
		i.dir = cmp.Or(dir, filepath.Dir(i.paths[0]))
		all = append(all, i)
	}
	return all, nil
}

// stringsOf reads a path or a list of paths, and leaves the rest to the schema.
func stringsOf(value any) (all []string) {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	for _, element := range list {
		if path, _ := element.(string); path != "" {
			all = append(all, path)
		}
	}
	return all
}

func mappings(value any) map[string]map[string]any {
	all := map[string]map[string]any{}
	mapping, _ := value.(map[string]any)
	for name, v := range mapping {
		if m, ok := v.(map[string]any); ok {
			all[name] = m
		}
	}
	return all
}
