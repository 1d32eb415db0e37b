package compose

import (
	"path/filepath"
	"slices"
	"strings"
)

// maxPorts bounds the published ports of one file: ranges are short to write.
const maxPorts = 1024

// checkText checks a text of a file in base before compose-go sees it, and returns its
// replacement: for a file name its absolute path, or "" if it cannot be read. After an error
// compose-go must not continue.
func (l *loading) checkText(at []string, base, text string) (string, error) {
	service, key := "", strings.Join(at, ".")
	attribute := key
	if len(at) > 1 && at[0] != "include" { // a name is not part of attributes
		below := strings.Join(at[2:], ".")
		if attribute = at[0] + "." + below; at[0] == "services" {
			service, key = at[1], below
		}
	}
	check := func(path string) string {
		abs, err := l.files.allowed(base, path)
		if err != nil {
			l.findings.add(service, key, "%q %s", path, err)
		}
		return abs
	}
	switch attribute {
	case "include", "include.path", "include.env_file", "include.project_directory", "configs.file", "secrets.file",
		"services.env_file", "services.env_file.path", "services.label_file":
		return check(text), nil
	case "services.extends.file":
		if text = check(text); text != "" {
			l.extended = append(l.extended, text)
		}
	case "services.extends", "services.extends.service":
		l.extends++
	case "volumes.driver_opts.device":
		if isRelative(text) {
			check(text)
		}
	case "services.volumes.source":
		if !filepath.IsAbs(text) {
			check(text)
		}
	case "services.volumes":
		source, rest, _ := strings.Cut(text, ":")
		if isRelative(source) {
			check(source)
		}
		_, options, _ := strings.Cut(rest, ":")
		l.checkVolumeOptions(service, options)
	case "services.ports":
		if l.ports += lengthOfRange(text); l.ports > maxPorts {
			l.findings.add(service, "ports", "are too many: one file can publish at most %d", maxPorts)
			return "", invalid("too many ports")
		}
	}
	return text, nil
}

// isRelative finds paths that could leave the package. Absolute ones are for the policy to judge.
func isRelative(path string) bool {
	return strings.HasPrefix(path, ".") || strings.HasPrefix(path, "~")
}

// checkVolumeOptions refuses short-form options that compose-go would silently drop.
func (l *loading) checkVolumeOptions(service, options string) {
	for option := range strings.SplitSeq(options, ",") {
		switch {
		case slices.Contains([]string{"", "ro", "rw", "nocopy", "z", "Z", "private", "rprivate", "shared", "rshared", "slave", "rslave"}, option):
		case slices.Contains([]string{"cached", "delegated", "consistent"}, option):
			l.warnings.add(service, "volume", "option %q has no effect on Linux", option)
		default:
			l.findings.add(service, "volumes", "has option %q, which is not supported", option)
		}
	}
}

// lengthOfRange is how many ports an element of `ports` has; 1 if malformed: compose-go reports it.
func lengthOfRange(port string) int {
	port, _, _ = strings.Cut(port, "/")
	first, last, _ := portRange(port[strings.LastIndex(port, ":")+1:])
	return Port{HostPort: first, LastPort: last}.size()
}
