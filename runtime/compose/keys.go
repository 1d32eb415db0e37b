package compose

import (
	"fmt"
	"strings"
)

// ruleText has the attributes that are not simply honoured, as runtime/README.md
// names them, and why. compose-go refuses what the Compose specification does not
// have; every other attribute is honoured or asks for nothing, to which a test
// holds the README.
//
//	attribute - why    changes nothing on a device and is ignored
//	attribute ! why    is refused; false asks for nothing
//	attribute = what   has to be a whole number, or a string with a unit
//
// It is text because code that makes the same of literals is 30 KB.
const ruleText = `
models services.models ! a device does not run models; define one as a service
jobs ! define it as a service with restart: "no"

services.attach - read logs with margolite logs
services.build - a device does not build images; the named image is pulled
services.cpu_count services.cpu_percent - it is for Windows
services.cpu_rt_period services.cpu_rt_runtime ! only cgroup v1 has it; add the capability SYS_NICE, and let the program set its scheduling policy
services.credential_spec ! it is for Windows
services.develop - a device is not for development
services.external_links ! put both services on one external network
services.gpus.options services.deploy.resources.reservations.devices.options - CDI has no options
services.pre_start ! define a service instead, and depend on it with service_completed_successfully
services.provider ! a device runs containers only
services.pull_refresh_after - pulled images are not checked again
services.storage_opt ! root file systems have no size limit of their own
services.umask ! set it in the command of the service
services.use_api_socket ! a device has no Docker engine
services.volumes.bind.selinux - files are not relabelled
services.volumes.image ! mount a volume, and fill it from a service
services.volumes.volume.labels - only named volumes have labels

services.deploy.endpoint_mode services.deploy.placement - it is for clusters; a device is one machine
services.deploy.labels - they apply to cluster services; containers have their own labels
services.deploy.resources.reservations.generic_resources - it is for clusters; a device is one machine
services.deploy.rollback_config - rolling back is up to the deployer
services.deploy.update_config - services are always replaced in the same way

services.mem_limit services.mem_reservation services.memswap_limit services.mem_swappiness services.shm_size = bytes
services.deploy.resources.limits.memory services.deploy.resources.reservations.memory services.volumes.tmpfs.size = bytes
services.blkio_config.device_read_bps.rate services.blkio_config.device_write_bps.rate = bytes
services.blkio_config.device_read_iops.rate services.blkio_config.device_write_iops.rate = bytes

networks.ipam.options ! this runtime assigns the addresses itself
configs.external ! a device has no store of configs; use file, environment or content
configs.labels - a config is a file, and files have no labels
secrets.external ! a device has no store of secrets; use file or environment
secrets.driver secrets.driver_opts ! a device has no store of secrets; use file or environment
secrets.labels - a secret is a file, and files have no labels
configs.template_driver secrets.template_driver ! give the final content
`

// rule is what becomes of an attribute; the zero rule is that it is honoured.
type rule struct {
	kind byte
	why  string
}

const (
	ignored = '-'
	refused = '!'
	inBytes = '='
)

// rulesByAttribute is ruleText, to look things up in.
func rulesByAttribute() map[string]rule {
	rules := map[string]rule{}
	for line := range strings.Lines(ruleText) {
		if at := strings.IndexAny(line, string([]byte{ignored, refused, inBytes})); at > 0 {
			for attribute := range strings.FieldsSeq(line[:at]) {
				rules[attribute] = rule{line[at], strings.TrimSpace(line[at+1:])}
			}
		}
	}
	return rules
}

func (l *loading) checkKeys(model map[string]any) {
	l.rules = rulesByAttribute()
	for section, definitions := range model {
		if l.checkKey(definitions, section, "", section) {
			continue
		}
		for name, definition := range mappings(definitions) { // a name is not part of attributes
			if section == "services" {
				l.checkBelow(definition, section, name, "")
			} else {
				l.checkBelow(definition, section, "", section+"."+name)
			}
		}
	}
}

// checkBelow looks at all that is in the value of an attribute, which errors call key.
func (l *loading) checkBelow(value any, attribute, service, key string) {
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			l.checkBelow(element, attribute, service, key)
		}
	case map[string]any:
		for name, value := range v {
			attribute, key := attribute+"."+name, strings.TrimPrefix(key+"."+name, ".")
			if !l.checkKey(value, attribute, service, key) {
				l.checkBelow(value, attribute, service, key)
			}
		}
	}
}

// checkKey tells whether there is a rule for an attribute, and applies it.
func (l *loading) checkKey(value any, attribute, service, key string) bool {
	r, is := l.rules[attribute]
	switch {
	case asksForNothing(value):
	case r.kind == ignored:
		l.warnOf(service, "%s is ignored: %s", key, r.why)
	case r.kind == refused && value != false:
		l.findings.add(service, key, "is not supported: %s", r.why)
	case r.kind == inBytes:
		switch value.(type) {
		case int, string:
		default:
			// compose-go would take a fraction, or what needs more than an int of
			// the device, as 0 and say nothing.
			l.findings.add(service, key, "is %v, which is not a whole number of bytes; add a unit, such as 64m", value)
		}
	}
	return is
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
