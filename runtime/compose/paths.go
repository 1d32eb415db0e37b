package compose

import (
	"path/filepath"
	"slices"
	"strings"
)

// maxPorts bounds the published ports of one file; ranges are written short.
const maxPorts = 1024

// checkPaths looks at values of a file in base that compose-go resolves or takes
// apart before it can be asked about them: paths, and short forms of which it
// drops what it does not know.
//
// It fails where compose-go must not go on at all.
func (l *loading) checkPaths(file map[string]any, base string) error {
	for _, section := range []string{"configs", "secrets"} {
		for name, object := range mappings(file[section]) {
			l.allowed(object["file"], base, "", section+"."+name+".file")
		}
	}
	for name, volume := range mappings(file["volumes"]) {
		options, _ := volume["driver_opts"].(map[string]any)
		if device, ok := options["device"].(string); ok && (strings.HasPrefix(device, ".") || strings.HasPrefix(device, "~")) {
			l.allowed(device, base, "", "volumes."+name+".driver_opts.device")
		}
	}
	ports := 0
	for name, service := range mappings(file["services"]) {
		l.allowed(service["env_file"], base, name, "env_file")
		l.allowed(service["label_file"], base, name, "label_file")
		volumes, _ := service["volumes"].([]any)
		for _, volume := range volumes {
			l.checkVolume(name, volume, base)
		}
		list, _ := service["ports"].([]any)
		for _, port := range list {
			ports += lengthOfRange(port)
		}
		if ports > maxPorts {
			l.findings.add(name, "ports", "are too many: one file can publish at most %d", maxPorts)
			return l.findings.err()
		}
	}
	return nil
}

func (l *loading) checkVolume(service string, value any, base string) {
	switch volume := value.(type) {
	case string:
		parts := strings.Split(volume, ":")
		l.checkSource(service, parts[0], base)
		if len(parts) < 3 {
			return
		}
		for option := range strings.SplitSeq(parts[2], ",") {
			switch {
			case slices.Contains([]string{"ro", "rw", "nocopy", "z", "Z"}, option), isPropagation(option):
			case slices.Contains([]string{"cached", "delegated", "consistent"}, option):
				l.warnings.add(service, "volume", "option %q has no effect on Linux", option)
			default:
				l.findings.add(service, "volumes", "has option %q, which is not supported", option)
			}
		}
	case map[string]any:
		if source, ok := volume["source"].(string); ok && volume["type"] == "bind" {
			// The long form needs no ./ in front of a relative path.
			if !filepath.IsAbs(source) && !strings.HasPrefix(source, "~") {
				source = "./" + source
			}
			l.checkSource(service, source, base)
		}
	}
}

// checkSource refuses relative paths of bind mounts that lead out of the package:
// what lies around it on the device is none of its business. Absolute ones are
// for the policy of the device to judge.
func (l *loading) checkSource(service, source, base string) {
	if strings.HasPrefix(source, ".") || strings.HasPrefix(source, "~") {
		l.allowed(source, base, service, "volumes")
	}
}

func isPropagation(s string) bool {
	return slices.Contains([]string{"private", "rprivate", "shared", "rshared", "slave", "rslave"}, s)
}

// lengthOfRange is how many ports the short form of an element of `ports` stands
// for, 1 where it is not understood: compose-go will say so.
func lengthOfRange(value any) int {
	port, _ := value.(string)
	port, _, _ = strings.Cut(port, "/")
	first, last, _ := portRange(port[strings.LastIndex(port, ":")+1:])
	return Port{HostPort: first, LastPort: last}.size()
}
