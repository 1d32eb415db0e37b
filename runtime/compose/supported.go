package compose

import (
	"fmt"
	"strings"
)

// shape says what may stand at one place of a Compose file, in the short and in
// the long form of every key. The zero shape is a place that may hold whatever
// the Compose specification has there.
type shape struct {
	keys    map[string]shape // of a mapping, or of each mapping in a list
	each    *shape           // instead of keys: for every value of a mapping of names
	refused string           // why a value here is not supported
	ignored string           // why a value here changes nothing on a device
	off     bool             // with refused or ignored: false is fine, it asks for nothing
	bytes   bool             // a whole number, or a string with a unit
}

const (
	notSupported = "is not supported"
	forSwarm     = "it is for clusters; a device is one machine"
	forWindows   = "it is for Windows"
)

func (s shape) orFalse() shape { s.off = true; return s }

func keys(k map[string]shape) shape { return shape{keys: k} }
func names(s shape) shape           { return shape{each: &s} }
func refused(reason string) shape   { return shape{refused: "is not supported: " + reason} }
func ignored(reason string) shape   { return shape{ignored: reason} }

// supportedKeys is everything this runtime honours, everything that asks for
// nothing, and the reasons for what it passes over or refuses. What is not in it
// is refused. runtime/README.md has it for people.
func supportedKeys() shape {
	supported := shape{}
	anything := names(supported)
	external := keys(map[string]shape{"name": supported})

	return keys(map[string]shape{
		"services": names(serviceKeys()),
		"volumes": names(keys(map[string]shape{
			"name": supported, "driver": supported, "driver_opts": anything, "external": external, "labels": anything,
		})),
		"networks": names(keys(map[string]shape{
			"name": supported, "driver": supported, "driver_opts": anything, "external": external, "labels": anything,
			"internal": supported, "attachable": supported, "enable_ipv4": supported, "enable_ipv6": supported,
			"ipam": keys(map[string]shape{
				"driver": supported,
				"config": keys(map[string]shape{
					"subnet": supported, "ip_range": supported, "gateway": supported, "aux_addresses": anything,
				}),
				"options": refused("addresses are given by this runtime itself"),
			}),
		})),
		"configs": names(keys(map[string]shape{
			"name": supported, "file": supported, "environment": supported, "content": supported,
			"external":        refused("a device has no store of configs; give file, environment or content").orFalse(),
			"labels":          ignored("a config is a file, and files have no labels"),
			"template_driver": refused("give the content itself"),
		})),
		"secrets": names(keys(map[string]shape{
			"name": supported, "file": supported, "environment": supported,
			"external":        refused("a device has no store of secrets; give file or environment").orFalse(),
			"labels":          ignored("a secret is a file, and files have no labels"),
			"driver":          refused("a device has no store of secrets; give file or environment"),
			"driver_opts":     refused("a device has no store of secrets; give file or environment"),
			"template_driver": refused("give the content itself"),
		})),
		"include": keys(map[string]shape{
			"path": supported, "env_file": supported, "project_directory": supported,
		}),
		"name": supported, "version": supported,
		"models": refused("models are not run on a device; make one a service"),
		"jobs":   refused("make a service with restart: \"no\" of it"),
	})
}

func serviceKeys() shape {
	supported := shape{}
	anything := names(supported)
	size := shape{bytes: true}
	limits := keys(map[string]shape{"path": supported, "rate": size})
	file := keys(map[string]shape{"source": supported, "target": supported, "uid": supported, "gid": supported, "mode": supported})
	devices := keys(map[string]shape{
		"capabilities": supported, "count": supported, "device_ids": supported, "driver": supported,
		"options": ignored("CDI has no options"),
	})
	hook := keys(map[string]shape{
		"command": supported, "user": supported, "privileged": supported, "working_dir": supported, "environment": anything,
	})

	return keys(map[string]shape{
		"image": supported, "platform": supported, "pull_policy": supported,
		"pull_refresh_after": ignored("what was pulled is not looked for again"),
		"build":              ignored("images are not built on a device; the image named is pulled"),
		"container_name":     supported,
		"entrypoint":         supported, "command": supported, "working_dir": supported, "user": supported, "group_add": supported,
		"environment": anything,
		"env_file":    keys(map[string]shape{"path": supported, "required": supported, "format": supported}),
		"labels":      anything, "label_file": supported, "annotations": anything,
		"hostname": supported, "domainname": supported, "tty": supported, "stdin_open": supported, "init": supported,
		"pid": supported, "ipc": supported, "uts": supported, "cgroup": supported, "userns_mode": supported,
		"sysctls": anything, "ulimits": names(keys(map[string]shape{"soft": supported, "hard": supported})),
		"umask": refused("set it in the command of the service"),

		"cpus": supported, "cpu_shares": supported, "cpu_period": supported, "cpu_quota": supported,
		"cpu_rt_period": supported, "cpu_rt_runtime": supported, "cpuset": supported,
		"cpu_count": ignored(forWindows), "cpu_percent": ignored(forWindows),
		"mem_limit": size, "mem_reservation": size, "memswap_limit": size, "mem_swappiness": size,
		"oom_kill_disable": supported, "oom_score_adj": supported, "pids_limit": supported, "shm_size": size,
		"cgroup_parent": supported,
		"blkio_config": keys(map[string]shape{
			"weight":          supported,
			"weight_device":   keys(map[string]shape{"path": supported, "weight": supported}),
			"device_read_bps": limits, "device_write_bps": limits, "device_read_iops": limits, "device_write_iops": limits,
		}),
		"devices":             keys(map[string]shape{"source": supported, "target": supported, "permissions": supported}),
		"device_cgroup_rules": supported, "gpus": devices,
		"deploy": deployKeys(devices),

		"volumes": keys(map[string]shape{
			"type": supported, "source": supported, "target": supported, "read_only": supported,
			"consistency": supported, // a hint for other systems than Linux
			"bind": keys(map[string]shape{
				"create_host_path": supported, "propagation": supported, "recursive": supported,
				"selinux": ignored("files are not relabelled"),
			}),
			"volume": keys(map[string]shape{
				"nocopy": supported, "subpath": supported,
				"labels": ignored("only volumes with a name have labels"),
			}),
			"tmpfs": keys(map[string]shape{"size": size, "mode": supported}),
			"image": refused("mount a volume, and fill it from a service"),
		}),
		"volumes_from": supported, "tmpfs": supported, "read_only": supported,
		"volume_driver": refused("volumes are directories of the device; use driver_opts of a volume"),
		"storage_opt":   refused("root file systems have no bounds of their own"),
		"configs":       file, "secrets": file,

		"networks": names(keys(map[string]shape{
			"aliases": supported, "ipv4_address": supported, "ipv6_address": supported, "link_local_ips": supported,
			"mac_address": supported, "interface_name": supported, "driver_opts": anything,
			"priority": supported, "gw_priority": supported, "use_service_name_alias": supported,
		})),
		"network_mode": supported, "mac_address": supported,
		"ports": keys(map[string]shape{
			"target": supported, "published": supported, "host_ip": supported, "protocol": supported,
			"mode": supported,                            // both modes mean the same on a single device
			"name": supported, "app_protocol": supported, // tell people, and nobody else
		}),
		"expose": supported, // services reach every port of each other
		"links":  supported, "extra_hosts": anything, "dns": supported, "dns_search": supported, "dns_opt": supported,
		"external_links": refused("put both services on one external network"),

		"cap_add": supported, "cap_drop": supported, "privileged": supported, "security_opt": supported,
		"credential_spec": refused(forWindows), "isolation": supported, "runtime": supported,
		"use_api_socket": refused("a device has no Docker engine").orFalse(),

		"depends_on": names(keys(map[string]shape{"condition": supported, "required": supported, "restart": supported})),
		"restart":    supported, "scale": supported, "profiles": supported,
		"stop_signal": supported, "stop_grace_period": supported,
		"healthcheck": keys(map[string]shape{
			"test": supported, "interval": supported, "timeout": supported, "retries": supported,
			"start_period": supported, "start_interval": supported, "disable": supported,
		}),
		"post_start": hook, "pre_stop": hook,
		"pre_start": refused("make a service of it, and depend on it with service_completed_successfully"),
		"logging":   keys(map[string]shape{"driver": supported, "options": anything}),
		"extends":   keys(map[string]shape{"service": supported, "file": supported}),
		"attach":    ignored("logs are read with margolite logs"),
		"develop":   ignored("nothing is developed on a device"),
		"provider":  refused("a device runs containers only"),
		"models":    refused("models are not run on a device; make one a service"),
	})
}

func deployKeys(devices shape) shape {
	supported := shape{}
	size := shape{bytes: true}
	return keys(map[string]shape{
		"mode": supported, "replicas": supported,
		"resources": keys(map[string]shape{
			"limits": keys(map[string]shape{"cpus": supported, "memory": size, "pids": supported}),
			"reservations": keys(map[string]shape{
				"memory": size, "devices": devices,
				"cpus":              supported, // counted by who admits the project
				"generic_resources": ignored(forSwarm),
			}),
		}),
		"restart_policy": keys(map[string]shape{
			"condition": supported, "delay": supported, "max_attempts": supported, "window": supported,
		}),
		"labels":          ignored("they are for the services of a cluster; containers have labels of their own"),
		"endpoint_mode":   ignored(forSwarm),
		"placement":       ignored(forSwarm),
		"update_config":   ignored("a service is replaced in its own way"),
		"rollback_config": ignored("what fails is rolled back by who deploys it"),
	})
}

// checkKeys finds every key of file that is not supported. It takes them out of
// raw, the same file before variables were replaced, so that compose-go gets on to
// the values of the others. So it does with those that are ignored.
func (l *loading) checkKeys(file, raw map[string]any) {
	top := l.supported
	services, rawServices := mappings(file["services"]), mappings(raw["services"])
	for name, service := range services {
		if service["build"] != nil {
			l.built[name] = true
		}
		l.checkValue(service, rawServices[name], *top.keys["services"].each, name, "")
	}
	for key, value := range file {
		if key != "services" {
			l.checkValue(map[string]any{key: value}, raw, top, "", "")
		}
	}
}

// checkValue walks down from the place called key, and tells whether a value of
// this sort is for compose-go to look at.
func (l *loading) checkValue(value, raw any, s shape, service, key string) bool {
	if asksForNothing(value) || s.off && value == false {
		return true
	}
	if s.refused != "" {
		l.findings.add(service, key, "%s", s.refused)
		return false
	}
	if s.ignored != "" {
		l.warnOf(service, "%s is ignored: %s", key, s.ignored)
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
			case !known && s.keys == nil:
				continue // a list of names in the form of a mapping, or a wrong type
			case !known:
				below = shape{refused: notSupported + meant(name, s.keys)}
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

// warning is something that people should know. What is wrong with a service of
// a profile that is not active is not among it.
type warning struct{ service, text string }

func (l *loading) warn(format string, args ...any) { l.warnOf("", format, args...) }

func (l *loading) warnOf(service, format string, args ...any) {
	l.warnings = append(l.warnings, warning{service, fmt.Sprintf(format, args...)})
}

func (w warning) String() string {
	if w.service == "" {
		return w.text
	}
	return fmt.Sprintf("service %q: %s", w.service, w.text)
}
