package compose

import "strings"

// supportedText is everything this runtime honours, everything that asks for
// nothing, and the reasons for what it passes over or refuses. What is not in it
// is refused. runtime/README.md has it for people.
//
// The lines below keys, one tab deeper, are what may stand in each of them. With
// none below, a key may hold whatever the Compose specification has there.
//
//	key*         a mapping of names: the lines below are for each of them
//	key:bytes    a whole number, or a string with a unit
//	key - why    changes nothing on a device and is ignored
//	key ! why    is refused
//	key:true     with either of them: false is fine, it asks for nothing
//
// It is text because code that makes the same of literals is 30 KB.
const supportedText = `
services*
	image platform pull_policy
	pull_refresh_after - pulled images are not checked again
	build - a device does not build images; the named image is pulled
	container_name
	entrypoint command working_dir user group_add
	environment
	env_file
		path required format
	labels label_file annotations
	hostname domainname tty stdin_open init
	pid ipc uts cgroup userns_mode
	sysctls
	ulimits*
		soft hard
	umask ! set it in the command of the service

	cpus cpu_shares cpu_period cpu_quota cpuset
	cpu_rt_period cpu_rt_runtime ! only cgroup v1 has it; add the capability SYS_NICE, and let the program set its scheduling policy
	cpu_count cpu_percent - it is for Windows
	mem_limit:bytes mem_reservation:bytes memswap_limit:bytes mem_swappiness:bytes
	oom_kill_disable oom_score_adj pids_limit shm_size:bytes
	cgroup_parent
	blkio_config
		weight
		weight_device
			path weight
		device_read_bps device_write_bps device_read_iops device_write_iops
			path rate:bytes
	devices
		source target permissions
	device_cgroup_rules
	gpus
		capabilities count device_ids driver
		options - CDI has no options
	deploy
		mode replicas
		resources
			limits
				cpus memory:bytes pids
			reservations
				memory:bytes
				devices
					capabilities count device_ids driver
					options - CDI has no options
				cpus # counted by who admits the project
				generic_resources - it is for clusters; a device is one machine
		restart_policy
			condition delay max_attempts window
		labels - they apply to cluster services; containers have their own labels
		endpoint_mode placement - it is for clusters; a device is one machine
		update_config - services are always replaced in the same way
		rollback_config - rolling back is up to the deployer

	volumes
		type source target read_only
		consistency # a hint for other systems than Linux
		bind
			create_host_path propagation recursive
			selinux - files are not relabelled
		volume
			nocopy subpath
			labels - only named volumes have labels
		tmpfs
			size:bytes mode
		image ! mount a volume, and fill it from a service
	volumes_from tmpfs read_only
	volume_driver ! volumes are directories of the device; use driver_opts of a volume
	storage_opt ! root file systems have no size limit of their own
	configs secrets
		source target uid gid mode

	networks*
		aliases ipv4_address ipv6_address link_local_ips mac_address interface_name driver_opts
		priority gw_priority use_service_name_alias
	network_mode mac_address
	ports
		target published host_ip protocol
		mode # both modes mean the same on a single device
		name app_protocol # tell people, and nobody else
	expose # services reach every port of each other
	links extra_hosts dns dns_search dns_opt
	external_links ! put both services on one external network

	cap_add cap_drop privileged security_opt
	credential_spec ! it is for Windows
	isolation runtime
	use_api_socket:true ! a device has no Docker engine

	depends_on*
		condition required restart
	restart scale profiles
	stop_signal stop_grace_period
	healthcheck
		test interval timeout retries start_period start_interval disable
	post_start pre_stop
		command user privileged working_dir environment
	pre_start ! define a service instead, and depend on it with service_completed_successfully
	logging
		driver options
	extends
		service file
	attach - read logs with margolite logs
	develop - a device is not for development
	provider ! a device runs containers only
	models ! a device does not run models; define one as a service
volumes*
	name driver driver_opts labels
	external
		name
networks*
	name driver driver_opts labels
	external
		name
	internal attachable enable_ipv4 enable_ipv6
	ipam
		driver
		config
			subnet ip_range gateway aux_addresses
		options ! this runtime assigns the addresses itself
configs*
	name file environment content
	external:true ! a device has no store of configs; use file, environment or content
	labels - a config is a file, and files have no labels
	template_driver ! give the final content
secrets*
	name file environment
	external:true ! a device has no store of secrets; use file or environment
	labels - a secret is a file, and files have no labels
	driver driver_opts ! a device has no store of secrets; use file or environment
	template_driver ! give the final content
include
	path env_file project_directory
name version
models ! a device does not run models; define one as a service
jobs ! define it as a service with restart: "no"
`

// supportedKeys is supportedText, to look things up in.
func supportedKeys() shape {
	lines := keyLines(strings.FieldsFunc(supportedText, func(r rune) bool { return r == '\n' }))
	return shape{keys: lines.read(0)}
}

// keyLines are those lines of supportedText that are not read yet.
type keyLines []string

// read takes the lines that are depth tabs deep with all below them.
func (l *keyLines) read(depth int) map[string]shape {
	var all map[string]shape
	for len(*l) > 0 {
		line := strings.TrimLeft((*l)[0], "\t")
		if len((*l)[0])-len(line) != depth {
			break
		}
		*l = (*l)[1:]
		line, _, _ = strings.Cut(line, " # ")
		line, ignored, _ := strings.Cut(line, " - ")
		line, refused, isRefused := strings.Cut(line, " ! ")
		if isRefused {
			refused = notSupported + ": " + refused
		}
		below := l.read(depth + 1)
		if all == nil {
			all = map[string]shape{}
		}
		for key := range strings.FieldsSeq(line) {
			key, what, _ := strings.Cut(key, ":")
			s := shape{keys: below, refused: refused, ignored: ignored, bytes: what == "bytes", off: what == "true"}
			if name, named := strings.CutSuffix(key, "*"); named {
				all[name] = shape{each: &s}
			} else {
				all[key] = s
			}
		}
	}
	return all
}
