package compose

import "path/filepath"

// include is one entry of `include`: a file, and files that are merged over it.
type include struct {
	paths    []string // absolute
	envFiles []string // absolute; none: .env in dir
	dir      string   // where relative paths in the files start
}

// includes reads `include` of a file in base.
func (l *loading) includes(tree map[string]any, base string) ([]include, error) {
	if tree["include"] == nil {
		return nil, nil
	}
	list, ok := tree["include"].([]any)
	if !ok {
		return nil, invalid("include is not a list")
	}
	var all []include
	for _, element := range list {
		entry, ok := element.(map[string]any)
		if !ok {
			entry = map[string]any{"path": element}
		}
		var i include
		i.paths = l.allowed(entry["path"], base, "", "include")
		i.envFiles = l.allowed(entry["env_file"], base, "", "include.env_file")
		if len(i.paths) == 0 {
			continue // refused
		}
		i.dir = filepath.Dir(i.paths[0])
		if dirs := l.allowed(entry["project_directory"], base, "", "include.project_directory"); len(dirs) > 0 {
			i.dir = dirs[0]
		}
		all = append(all, i)
	}
	return all, nil
}

// allowed is the absolute form of the paths that key has; it says why others cannot be read.
func (l *loading) allowed(value any, base, service, key string) (paths []string) {
	for _, path := range stringsOf(value) {
		if abs, err := l.files.allowed(base, path); err != nil {
			l.findings.add(service, key, "%q %s", path, err)
		} else {
			paths = append(paths, abs)
		}
	}
	return paths
}

// stringsOf is a key that holds a path or a list of them, each also as a mapping
// with a path. What else it holds is left to the schema.
func stringsOf(value any) (all []string) {
	switch v := value.(type) {
	case string:
		return []string{v}
	case map[string]any:
		return stringsOf(v["path"])
	case []any:
		for _, element := range v {
			all = append(all, stringsOf(element)...)
		}
	}
	return all
}

// mappings are the values of a mapping that are mappings themselves.
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
