package compose

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
)

// ruleText lists the attributes that are not simply honoured, as runtime/README.md names them,
// with reasons. Every other attribute of the Compose specification is honoured or asks for
// nothing, which a test compares with the README; compose-go refuses the rest.
//
//	attribute - why    changes nothing on a device and is ignored
//	attribute ! why    is refused; false asks for nothing
//	attribute = least  must be a whole number of bytes, or one with a unit
//	attribute @ a b    is a number from a to b; 0 is the same as none
//	attribute > least  is a duration of at least that, or 0, and at most a year
//	attribute | forms  has one of the forms, as have the keys of a mapping; an explanation follows the colon
//	attribute ~ p what matches the pattern p, which errors call what
//	attribute < n      has at most n entries
//
// The elements of a list have a rule of their own, for attribute[].
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

services.logging.options.compress services.logging.options.env services.logging.options.env-regex - logs contain only the output of a service
services.logging.options.labels services.logging.options.labels-regex services.logging.options.tag - logs contain only the output of a service
services.logging.options.max-buffer-size services.logging.options.mode - logs contain only the output of a service

services.mem_limit services.mem_reservation = 6m
services.deploy.resources.limits.memory services.deploy.resources.reservations.memory = 6m
services.memswap_limit = -1
services.shm_size services.volumes.tmpfs.size = 0
services.blkio_config.device_read_bps.rate services.blkio_config.device_write_bps.rate = 0
services.blkio_config.device_read_iops.rate services.blkio_config.device_write_iops.rate = 0

services.blkio_config.weight services.blkio_config.weight_device.weight @ 10 1000
services.cpu_period @ 1000 1000000
services.cpu_shares @ 2 262144
services.mem_swappiness @ 0 100
services.deploy.restart_policy.max_attempts services.healthcheck.retries @ 0 1048576
services.logging.options.max-file @ 1 100
services.oom_score_adj @ -1000 1000
services.pids_limit services.deploy.resources.limits.pids @ -1 9223372036854775807
services.scale services.deploy.replicas @ 0 64

services.deploy.restart_policy.delay services.deploy.restart_policy.window services.stop_grace_period > 0s
services.healthcheck.interval services.healthcheck.timeout > 1ms
services.healthcheck.start_interval services.healthcheck.start_period > 1ms

services.deploy.mode | replicated global
services.deploy.resources.reservations.devices.driver services.gpus.driver | nvidia cdi
services.deploy.restart_policy.condition | none no on-failure unless-stopped any always
services.env_file.format | raw
services.ipc | private host shareable service:<name> container:<name>
services.isolation | default: others are for Windows
services.logging.driver | json-file local none
services.logging.options | max-size max-file compress env env-regex labels labels-regex max-buffer-size mode tag
services.network_mode | default private bridge host none service:<name> container:<name>
services.pid | private host service:<name> container:<name>
services.ports.mode | host ingress
services.restart | no always unless-stopped on-failure on-failure:<number>
services.runtime | runc io.containerd.runc.v2
services.ulimits | as core cpu data fsize locks memlock msgqueue nice nofile nproc rss rtprio rttime sigpending stack
services.userns_mode | host: containers use the users of the device
services.uts | private host
services.volumes.bind.propagation | private rprivate shared rshared slave rslave
services.volumes.type | volume bind tmpfs
networks.driver | bridge macvlan ipvlan: for host and none, set network_mode in the service
networks.driver_opts.ipvlan_mode | l2 l3 l3s
networks.driver_opts.macvlan_mode | bridge vepa private passthru
networks.ipam.driver | default: this runtime assigns the addresses itself
volumes.driver | local
volumes.driver_opts | type o device

services.blkio_config.device_read_bps.path services.blkio_config.device_write_bps.path ~ (?s:/[^\x00]*) an absolute path
services.blkio_config.device_read_iops.path services.blkio_config.device_write_iops.path ~ (?s:/[^\x00]*) an absolute path
services.blkio_config.weight_device.path ~ (?s:/[^\x00]*) an absolute path
services.cgroup_parent ~ \.?([!-\-/-~]+\.?)* a cgroup path
services.container_name ~ ([A-Za-z0-9][A-Za-z0-9_.-]{0,127})? a name of letters, digits, _, . and -
services.cpuset ~ ([0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*)? a list of CPUs such as 0-2,4
services.devices.permissions ~ [rwm]{1,3} some of r, w and m
services.dns_opt[] ~ [!-"$-~]{1,255} an option of printable ASCII characters without spaces and #
services.group_add[] ~ [!-"$-9;-~]{1,255} the name or number of a group
services.hostname services.domainname ~ ([!-"$-~]{1,64}\.?)? a name of at most 64 printable ASCII characters without spaces and #
services.working_dir ~ (?s:/.*)? an absolute path
volumes.driver_opts.device volumes.driver_opts.o ~ [^\x00-\x1f\x7f]* text without control characters
volumes.driver_opts.type ~ [a-z0-9._-]* a file system type

services.cap_add services.cap_drop services.device_cgroup_rules services.devices services.gpus < 256
services.dns services.dns_opt services.dns_search services.group_add services.links < 256
services.networks services.networks.aliases services.networks.link_local_ips < 256
services.security_opt services.sysctls networks.ipam.config.aux_addresses < 256
services.blkio_config.device_read_bps services.blkio_config.device_write_bps < 256
services.blkio_config.device_read_iops services.blkio_config.device_write_iops services.blkio_config.weight_device < 256
services.configs services.secrets < 64
services.post_start services.pre_stop < 32
services.tmpfs services.volumes < 128

networks.ipam.options ! this runtime assigns the addresses itself
configs.external ! a device has no store of configs; use file, environment or content
configs.labels - a config is a file, and files have no labels
secrets.external ! a device has no store of secrets; use file or environment
secrets.driver secrets.driver_opts ! a device has no store of secrets; use file or environment
secrets.labels - a secret is a file, and files have no labels
configs.template_driver secrets.template_driver ! give the final content
`

const (
	maxDuration = 366 * 24 * time.Hour
	maxMatched  = 4096 // bytes of a text that has a pattern
)

// rule is the treatment of an attribute; the zero rule honours it.
type rule struct {
	kind byte
	why  string
}

const (
	ignored   = '-'
	refused   = '!'
	inBytes   = '='
	between   = '@'
	lasting   = '>'
	formOf    = '|'
	patternOf = '~'
	entryMax  = '<'
)

func rulesByAttribute() map[string]rule {
	rules := map[string]rule{}
	for line := range strings.Lines(ruleText) {
		attributes := strings.Fields(line)
		kind := slices.IndexFunc(attributes, func(field string) bool { return len(field) == 1 })
		if kind < 0 {
			continue
		}
		_, why, _ := strings.Cut(line, " "+attributes[kind]+" ")
		for _, attribute := range attributes[:kind] {
			rules[attribute] = rule{attributes[kind][0], strings.TrimSpace(why)}
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
			service, key := "", section+"."+name
			if section == "services" {
				service, key = name, ""
			}
			l.checkBelow(definition, section, service, key)
		}
	}
}

// checkBelow checks everything in the value of an attribute, which errors call key.
func (l *loading) checkBelow(value any, attribute, service, key string) {
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			l.checkKey(element, attribute+"[]", service, key)
			l.checkBelow(element, attribute, service, key)
		}
	case map[string]any:
		for name, value := range v {
			if key == "networks" { // of a service, by their names
				l.checkBelow(value, attribute, service, key+"."+name)
				continue
			}
			attribute, key := attribute+"."+name, strings.TrimPrefix(key+"."+name, ".")
			if !l.checkKey(value, attribute, service, key) {
				l.checkBelow(value, attribute, service, key)
			}
		}
	}
}

// checkKey applies the rule for an attribute; the result says whether it covers the whole value.
func (l *loading) checkKey(value any, attribute, service, key string) bool {
	r := l.rules[attribute]
	text, isText := value.(string)
	refuse := func(format string, args ...any) { l.findings.add(service, key, format, args...) }
	switch {
	case entries(value) == 0:
	case r.kind == ignored:
		l.warnings.add(service, key, "is ignored: %s", r.why)
	case r.kind == refused && value != false:
		refuse("is not supported: %s", r.why)
	case r.kind == inBytes:
		n, whole := number(value)
		if least, _ := number(r.why); !whole {
			refuse("is %v, which is not a whole number of bytes; add a unit, such as 64m", value)
		} else if n != 0 && n < least {
			refuse("is %d bytes; the minimum is %s", n, r.why)
		}
	case r.kind == between:
		var least, most int64
		_, _ = fmt.Sscan(r.why, &least, &most) // of our own text
		if n, err := strconv.ParseInt(fmt.Sprint(value), 10, 64); err != nil || n != 0 && (n < least || n > most) {
			refuse("is %v, which is not between %d and %d", value, least, most)
		}
	case r.kind == lasting:
		var d types.Duration
		err := d.DecodeMapstructure(value)
		switch least, _ := time.ParseDuration(r.why); {
		case err != nil || d < 0 || time.Duration(d) > maxDuration:
			refuse("is %v, which is not between 0 and a year", value)
		case d > 0 && time.Duration(d) < least:
			refuse("is %v; the minimum is %s", value, r.why)
		}
	case r.kind == formOf:
		forms, why, _ := strings.Cut(r.why, ": ")
		known := strings.Fields(forms)
		only := strings.TrimSuffix(strings.Join(known, ", ")+": "+why, ": ")
		if isText && text != "" && !hasForm(text, known) {
			refuse("%.80q is not supported, only %s", text, only)
		}
		names, _ := value.(map[string]any)
		for name := range names {
			if !hasForm(name, known) && !strings.HasPrefix(name, "x-") {
				l.findings.add(service, key+"."+name, "is not supported, only %s", only)
			}
		}
	case r.kind == patternOf && isText:
		pattern, what, _ := strings.Cut(r.why, " ")
		if is, err := regexp.MatchString("^(?:"+pattern+")$", text); err != nil || !is || len(text) > maxMatched {
			refuse("%.80q is not %s", text, what)
		}
	case r.kind == entryMax:
		if most, _ := number(r.why); entries(value) > int(most) {
			refuse("has %d entries; the limit is %d", entries(value), most)
		}
	}
	return r.kind == ignored || r.kind == refused
}

// hasForm tells whether text has one of forms, with placeholders <name> and <number>.
func hasForm(text string, forms []string) bool {
	return slices.ContainsFunc(forms, func(form string) bool {
		before, _, _ := strings.Cut(form, "<")
		rest, is := strings.CutPrefix(text, before)
		switch form[len(before):] {
		case "<name>":
			return is && ValidName(rest)
		case "<number>":
			_, err := strconv.ParseUint(rest, 10, 31)
			return is && err == nil
		}
		return text == form
	})
}

// number parses a whole number or size. compose-go takes fractions and large ones for 0.
func number(value any) (n int64, whole bool) {
	switch value.(type) {
	case int, string:
		var size types.UnitBytes
		err := size.DecodeMapstructure(value)
		return int64(size), err == nil
	}
	return 0, false
}

// entries is the length of a list or mapping. An empty one changes nothing, anywhere.
func entries(value any) int {
	switch v := value.(type) {
	case nil:
		return 0
	case []any:
		return len(v)
	case map[string]any:
		return len(v)
	}
	return 1
}
