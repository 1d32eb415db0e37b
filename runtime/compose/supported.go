package compose

import "strings"

// shape says what may stand at one place of a Compose file, in the short and in
// the long form of every key. The zero shape is a place that may hold whatever
// the Compose specification has there.
type shape struct {
	keys    map[string]shape // of a mapping, or of each mapping in a list
	each    *shape           // instead of keys: for every value of a mapping of names
	refused string           // why a value here is not supported
	off     bool             // with refused: false is fine, it asks for nothing
	unknown string           // with keys: why another key is not supported
	bytes   bool             // a whole number, or a string with a unit
}

const notSupported = "is not supported"

// supportedKeys is everything this runtime honours, everything that asks for
// nothing, and the reasons for what users will miss. What is not in it is refused.
func supportedKeys() shape {
	supported := shape{}
	refused := func(reason string) shape { return shape{refused: reason} }
	keys := func(k map[string]shape) shape { return shape{keys: k} }
	names := func(s shape) shape { return shape{each: &s} }
	off := shape{refused: notSupported, off: true}
	anything := names(supported)
	size := shape{bytes: true}

	ports := keys(map[string]shape{
		"target": supported, "published": supported, "host_ip": supported, "protocol": supported,
		"mode": supported,                            // both modes mean the same on a single device
		"name": supported, "app_protocol": supported, // tell people, and nobody else
	})
	volumes := keys(map[string]shape{
		"type": supported, "source": supported, "target": supported, "read_only": supported,
		"consistency": supported, // a hint for other systems than Linux
		"bind": keys(map[string]shape{
			"create_host_path": supported, "propagation": supported,
			"selinux":   refused("is not supported: files are not relabelled"),
			"recursive": refused(notSupported),
		}),
		"volume": keys(map[string]shape{"nocopy": supported}),
	})
	dependsOn := names(keys(map[string]shape{"condition": supported, "required": supported, "restart": off}))
	defaultNetwork := shape{
		keys:    map[string]shape{"default": keys(nil)},
		unknown: "is not supported: services are connected by the default network only",
	}

	service := keys(map[string]shape{
		"image": supported, "container_name": supported,
		"entrypoint": supported, "command": supported, "working_dir": supported, "user": supported,
		"environment": anything,
		"env_file":    keys(map[string]shape{"path": supported, "required": supported}),
		"labels":      anything,
		"volumes":     volumes, "tmpfs": supported, "read_only": supported,
		"ports": ports, "expose": supported, // services reach every port of each other
		"networks":   defaultNetwork,
		"depends_on": dependsOn, "restart": supported,
		"mem_limit": size, "cpus": supported,
		"deploy": keys(map[string]shape{
			"resources": keys(map[string]shape{
				"limits": keys(map[string]shape{"cpus": supported, "memory": size}),
			}),
			"restart_policy": refused("is not supported; use restart"),
		}),
		"extends": keys(map[string]shape{"service": supported, "file": supported}),

		"build":         refused("is not supported: images are not built on a device; name an image"),
		"profiles":      refused("is not supported: every service of a project is run"),
		"hostname":      refused("is not supported: a service is known by its own name"),
		"network_mode":  refused("is not supported: services are connected by the default network only"),
		"memswap_limit": refused("is not supported; use mem_limit"),
		"label_file":    refused("is not supported; use labels"),
		"links":         refused("is not supported: services know each other by their names"),
		"secrets":       refused("is not supported; mount a file"),
		"configs":       refused("is not supported; mount a file"),
		"privileged":    off, "init": off, "tty": off, "stdin_open": off,
		"oom_kill_disable": off, "use_api_socket": off,
	})

	return keys(map[string]shape{
		"services": names(service),
		"volumes": names(keys(map[string]shape{
			"name": supported, "driver": supported, "external": off,
			"driver_opts": refused("is not supported; for a path of the device use a bind mount"),
		})),
		"networks": defaultNetwork,
		"include": keys(map[string]shape{
			"path": supported, "env_file": supported, "project_directory": supported,
		}),
		"name": supported, "version": supported,
		"secrets": refused("is not supported; mount files into services"),
		"configs": refused("is not supported; mount files into services"),
	})
}

// checkKeys finds every key of file that is not supported. It takes them out of
// raw, the same file before variables were replaced, so that compose-go gets on to
// the values of the others.
func (l *loading) checkKeys(file, raw map[string]any) {
	top := supportedKeys()
	services, rawServices := mappings(file["services"]), mappings(raw["services"])
	for name, service := range services {
		l.checkValue(service, rawServices[name], *top.keys["services"].each, name, "")
	}
	for key, value := range file {
		if key != "services" {
			l.checkValue(map[string]any{key: value}, raw, top, "", "")
		}
	}
}

// checkValue walks down from the place called key, and tells whether a value of
// this sort may stand there at all.
func (l *loading) checkValue(value, raw any, s shape, service, key string) bool {
	if asksForNothing(value) || s.off && value == false {
		return true
	}
	if s.refused != "" {
		l.findings.add(service, key, "%s", s.refused)
		return false
	}
	switch v := value.(type) {
	case []any:
		rawList, _ := raw.([]any)
		for n, element := range v {
			if _, scalar := element.(string); !scalar && n < len(rawList) {
				l.checkValue(element, rawList[n], s, service, key)
			}
		}
	case map[string]any:
		rawMap, _ := raw.(map[string]any)
		for name, value := range v {
			below, known := s.keys[name]
			switch {
			case s.each != nil:
				below = *s.each
			case strings.HasPrefix(name, "x-"):
				continue
			case !known && s.unknown != "":
				// A network is asked for by its name alone.
				below, value = shape{refused: s.unknown}, true
			case !known:
				below = shape{refused: notSupported}
			}
			if !l.checkValue(value, rawMap[name], below, service, strings.TrimPrefix(key+"."+name, ".")) {
				delete(rawMap, name)
			}
		}
	case int, string:
	default:
		// compose-go would take a fraction, or what needs more than an int of
		// the device, as 0 and say nothing.
		if s.bytes {
			l.findings.add(service, key, "is %v, which is not a whole number of bytes; write it with a unit: 64m", v)
			return false
		}
	}
	return true
}

// asksForNothing is true for empty values, which change nothing wherever they stand.
func asksForNothing(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}
