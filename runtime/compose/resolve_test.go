package compose_test

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
)

var comparable = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

// of points to a value.
func of[T any](v T) *T { return &v }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestLoadResolvesAttributes(t *testing.T) {
	env := map[string]string{"TOKEN": "t0ken"}
	type svc = compose.Service
	for name, c := range map[string]struct {
		keys string
		got  func(s *svc) any
		want any
	}{
		"group_add":           {"group_add: [dialout, 44]", func(s *svc) any { return s.Groups }, []string{"dialout", "44"}},
		"hostname":            {"hostname: a.b\ndomainname: plant.example", func(s *svc) any { return s.Hostname + " " + s.Domainname }, "a.b plant.example"},
		"hostname of no DNS":  {"hostname: gw_07.plant..example\ndomainname: plant.example.", func(s *svc) any { return s.Hostname + " " + s.Domainname }, "gw_07.plant..example plant.example"},
		"tty and the rest":    {"tty: true\nstdin_open: true\ninit: true", func(s *svc) any { return []bool{s.TTY, s.StdinOpen, s.Init} }, []bool{true, true, true}},
		"platform":            {"platform: linux/arm64/v8", func(s *svc) any { return s.ImageOf().Key() }, "docker.io/library/nginx:latest (linux/arm64)"},
		"platform of 32 bit":  {"platform: linux/arm/v6", func(s *svc) any { return s.Platform }, "linux/arm/v6"},
		"pull_policy":         {"pull_policy: if_not_present", func(s *svc) any { return s.PullPolicy }, compose.PullMissing},
		"pull_policy always":  {"pull_policy: always", func(s *svc) any { return s.PullPolicy }, compose.PullAlways},
		"pull_policy weekly":  {"pull_policy: weekly", func(s *svc) any { return s.PullPolicy }, compose.PullMissing},
		"annotations":         {"annotations: [a=b]", func(s *svc) any { return s.Annotations }, map[string]string{"a": "b"}},
		"pid":                 {"pid: host", func(s *svc) any { return s.PID }, compose.Namespace{Mode: compose.ModeHost}},
		"pid of a container":  {"pid: container:other-web-1", func(s *svc) any { return s.PID }, compose.Namespace{Mode: compose.ModeContainer, Of: "other-web-1"}},
		"ipc":                 {"ipc: shareable", func(s *svc) any { return s.IPC }, compose.Namespace{Mode: compose.ModeShareable}},
		"private modes":       {"ipc: private\npid: ''", func(s *svc) any { return []compose.Namespace{s.IPC, s.Cgroup, s.PID} }, make([]compose.Namespace, 3)},
		"cgroup of its own":   {"cgroup: private", func(s *svc) any { return s.Cgroup }, compose.Namespace{Mode: compose.ModeOwn}},
		"uts and cgroup":      {"uts: host\ncgroup: host", func(s *svc) any { return []compose.NamespaceMode{s.UTS.Mode, s.Cgroup.Mode} }, []compose.NamespaceMode{"host", "host"}},
		"sysctls as a list":   {"sysctls: [net.core.somaxconn=1024, kernel.shmmax=1]", func(s *svc) any { return s.Sysctls }, map[string]string{"net.core.somaxconn": "1024", "kernel.shmmax": "1"}},
		"sysctls as a map":    {"sysctls: {net.ipv4.ip_forward: 1}", func(s *svc) any { return s.Sysctls }, map[string]string{"net.ipv4.ip_forward": "1"}},
		"ulimits":             {"ulimits: {nproc: 65535, core: 0, nofile: {soft: 1, hard: -1}}", func(s *svc) any { return s.Ulimits }, []compose.Ulimit{{Name: "core"}, {Name: "nofile", Soft: 1, Hard: -1}, {Name: "nproc", Soft: 65535, Hard: 65535}}},
		"ulimits by variable": {"ulimits: {nofile: \"${N:-20}\"}", func(s *svc) any { return s.Ulimits }, []compose.Ulimit{{Name: "nofile", Soft: 20, Hard: 20}}},
		"oom_score_adj":       {"oom_score_adj: -500", func(s *svc) any { return s.OOMScoreAdj }, of(-500)},

		"memory": {
			"mem_limit: 64m\nmem_reservation: 32m\nmemswap_limit: -1\nmem_swappiness: 0\nshm_size: 2g\noom_kill_disable: true",
			func(s *svc) any { s.Resources.Pids = s.ShmSize; return s.Resources },
			compose.Resources{Memory: 64 << 20, MemoryReservation: 32 << 20, MemorySwap: -1, Swappiness: of(uint64(0)), OOMKillDisable: true, Pids: 2 << 30},
		},
		"memory of deploy": {
			"deploy: {resources: {limits: {memory: 64m, cpus: '0.5', pids: 20}, reservations: {memory: 32m}}}",
			func(s *svc) any { return s.Resources },
			compose.Resources{Memory: 64 << 20, MemoryReservation: 32 << 20, NanoCPUs: 500_000_000, Pids: 20},
		},
		"CPUs": {
			"cpu_shares: 512\ncpu_period: 50000\ncpu_quota: 25000\ncpuset: 0-2,5\npids_limit: -1\ncgroup_parent: /plant/cell",
			func(s *svc) any { return s.Resources },
			compose.Resources{CPUShares: 512, CPUPeriod: 50000, CPUQuota: 25000, CPUSet: "0-2,5", Pids: -1, CgroupParent: "/plant/cell"},
		},
		"blkio_config": {
			"blkio_config: {weight: 300, weight_device: [{path: /dev/sdb, weight: 400}], device_read_bps: [{path: /dev/sdb, rate: 12mb}], device_write_iops: [{path: /dev/sda, rate: 30}]}",
			func(s *svc) any { return s.Resources },
			compose.Resources{BlkioWeight: 300, BlkioDevices: []compose.BlkioDevice{{Path: "/dev/sda", WriteIOPS: 30}, {Path: "/dev/sdb", Weight: 400, ReadBPS: 12 << 20}}},
		},
		"devices": {
			"devices: ['/dev/ttyUSB0', '/dev/snd:/dev/sound:r', {source: /dev/a, target: /dev/b, permissions: rw}]",
			func(s *svc) any { return s.Devices },
			[]compose.Device{{Path: "/dev/a", Target: "/dev/b", Permissions: "rw"}, {Path: "/dev/snd", Target: "/dev/sound", Permissions: "r"}, {Path: "/dev/ttyUSB0", Target: "/dev/ttyUSB0", Permissions: "rwm"}},
		},
		"CDI devices":         {"devices: ['vendor.com/card=1']\ndeploy: {resources: {reservations: {devices: [{driver: cdi, capabilities: [x], device_ids: [a.b/c=d]}]}}}", func(s *svc) any { return s.CDI }, []string{"a.b/c=d", "vendor.com/card=1"}},
		"all GPUs":            {"gpus: all", func(s *svc) any { return s.CDI }, []string{"nvidia.com/gpu=all"}},
		"some GPUs":           {"gpus: [{count: 2}]", func(s *svc) any { return s.CDI }, []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1"}},
		"reserved GPUs":       {"deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ['3'], capabilities: [gpu]}]}}}", func(s *svc) any { return s.CDI }, []string{"nvidia.com/gpu=3"}},
		"GPUs without number": {"deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}", func(s *svc) any { return s.CDI }, []string{"nvidia.com/gpu=all"}},
		"device_cgroup_rules": {"device_cgroup_rules: ['c 188:* rwm']", func(s *svc) any { return s.DeviceRules }, []string{"c 188:* rwm"}},

		"volumes": {
			"volumes: [/cache, {type: volume, source: data, target: /d, read_only: true, volume: {subpath: a/b, nocopy: true}}, {type: bind, source: /srv, target: /srv, bind: {recursive: disabled}}]",
			func(s *svc) any { return s.Mounts },
			[]compose.Mount{{Anonymous: true, Target: "/cache"}, {Volume: "data", Target: "/d", ReadOnly: true, NoCopy: true, Subpath: "a/b"}, {Path: "/srv", Target: "/srv", Create: true, NotBelow: true}},
		},
		"recursive binds": {
			"volumes: [" + bind("/a", "read_only: true, bind: {recursive: readonly}") + ", " + bind("/b", "read_only: true, bind: {recursive: writable}") + ", " + bind("/c", "bind: {recursive: writable}") + "]",
			func(s *svc) any { return s.Mounts },
			[]compose.Mount{{Path: "/a", Target: "/a", ReadOnly: true, Create: true, Below: compose.BelowReadOnly}, {Path: "/b", Target: "/b", ReadOnly: true, Create: true, Below: compose.BelowWritable}, {Path: "/c", Target: "/c", Create: true}},
		},
		"a relabelled bind": {"volumes: ['/a:/a:ro,z,rslave']", func(s *svc) any { return s.Mounts }, []compose.Mount{{Path: "/a", Target: "/a", ReadOnly: true, Create: true, Propagation: "rslave"}}},
		"tmpfs":             {"tmpfs: [/run]\nvolumes: [{type: tmpfs, target: /tmp, tmpfs: {size: 64m, mode: 0o1777}}]", func(s *svc) any { return s.Tmpfs }, []compose.Tmpfs{{Target: "/run"}, {Target: "/tmp", Options: []string{"mode=1777", "size=67108864"}}}},
		"an environment as secret": {
			"secrets: [{source: token, target: tok, uid: '5', gid: '6', mode: 0o400}]",
			func(s *svc) any { return s.Files },
			[]compose.File{{Secret: true, Name: "token", Target: "/run/secrets/tok", UID: 5, GID: 6, Mode: 0o400, Content: []byte("t0ken")}},
		},
		"a config": {
			"configs: [plain, {source: plain, target: /etc/plain}]",
			func(s *svc) any { return s.Files },
			[]compose.File{{Name: "plain", Target: "/etc/plain", Mode: 0o444, Content: []byte("with t0ken\n")}, {Name: "plain", Target: "/plain", Mode: 0o444, Content: []byte("with t0ken\n")}},
		},

		"network_mode":              {"network_mode: none", func(s *svc) any { return []any{s.Network.Mode, len(s.Attached)} }, []any{compose.ModeNone, 0}},
		"the network bridge":        {"network_mode: bridge", func(s *svc) any { return s.Attached }, []compose.Attachment{{Network: "default"}}},
		"the external network host": {"networks: [outside]\nports: ['80:80']", func(s *svc) any { return []any{s.Network.Mode, len(s.Attached), len(s.Ports)} }, []any{compose.ModeHost, 0, 0}},
		"networks": {
			"networks: {default: {aliases: [b, a, b]}, front: {gw_priority: 1, ipv4_address: 10.9.0.5, ipv6_address: 'fd00::5', interface_name: plant0, mac_address: 02-00-00-00-00-05, link_local_ips: [169.254.7.7]}, inner: {gw_priority: 9, driver_opts: {com.docker.network.endpoint.sysctls: 'net.ipv4.conf.IFNAME.log_martians=1'}}}",
			func(s *svc) any { return s.Attached },
			[]compose.Attachment{
				{Network: "front", IPv4: addr("10.9.0.5"), IPv6: addr("fd00::5"), LinkLocal: []netip.Addr{addr("169.254.7.7")}, MAC: "02:00:00:00:00:05", Interface: "plant0", Gateway: 1},
				{Network: "default", Aliases: []string{"a", "b"}},
				{Network: "inner", Gateway: 9, Sysctls: []string{"net.ipv4.conf.IFNAME.log_martians=1"}},
			},
		},
		"priorities": {"networks: {default: , front: {priority: 5}, other: }\nmac_address: 02:00:00:00:00:09", func(s *svc) any {
			return []string{s.Attached[0].Network, s.Attached[0].MAC, s.Attached[1].Network, s.Attached[2].Network}
		}, []string{"front", "02:00:00:00:00:09", "default", "other"}},
		"extra_hosts":           {"extra_hosts: {b: [10.0.0.2, 'fd00::2'], a: host-gateway}", func(s *svc) any { return s.ExtraHosts }, []compose.ExtraHost{{Name: "a"}, {Name: "b", Address: addr("10.0.0.2")}, {Name: "b", Address: addr("fd00::2")}}},
		"extra_hosts of no DNS": {"extra_hosts: ['opc_server/1:10.1.2.3', 'db.plant.local.:10.1.2.4', 'localhost:host-gateway']", func(s *svc) any { return s.ExtraHosts }, []compose.ExtraHost{{Name: "db.plant.local", Address: addr("10.1.2.4")}, {Name: "localhost"}, {Name: "opc_server/1", Address: addr("10.1.2.3")}}},
		"aliases of no DNS": {
			"networks: {default: {aliases: [plc/line1, '*.plant.local', db.plant.local., localhost, db.plant.local]}}",
			func(s *svc) any { return s.Attached[0].Aliases },
			[]string{"*.plant.local", "db.plant.local", "localhost", "plc/line1"},
		},
		"extra_hosts as a list": {"extra_hosts: ['a:10.0.0.1', 'b=[::1]']", func(s *svc) any { return s.ExtraHosts }, []compose.ExtraHost{{Name: "a", Address: addr("10.0.0.1")}, {Name: "b", Address: addr("::1")}}},
		"dns":                   {"dns: 10.0.0.1\ndns_search: [plant.example., .]\ndns_opt: ['ndots:2']", func(s *svc) any { return []any{s.DNS, s.DNSSearch, s.DNSOptions} }, []any{[]netip.Addr{addr("10.0.0.1")}, []string{"plant.example", "."}, []string{"ndots:2"}}},
		"ports": {
			"ports: ['3000', '3001-3002', '8000-8010:80', '127.0.0.1:5000:5000/udp', '9000-9001:9000-9001/sctp', {target: 70, published: '7000-7001', mode: host}]",
			func(s *svc) any { return s.Ports },
			[]compose.Port{
				{ContainerPort: 3000, Protocol: "tcp"},
				{ContainerPort: 3001, Protocol: "tcp"},
				{ContainerPort: 3002, Protocol: "tcp"},
				{HostIP: addr("127.0.0.1"), HostPort: 5000, ContainerPort: 5000, Protocol: "udp"},
				{HostPort: 7000, LastPort: 7001, ContainerPort: 70, Protocol: "tcp"},
				{HostPort: 8000, LastPort: 8010, ContainerPort: 80, Protocol: "tcp"},
				{HostPort: 9000, ContainerPort: 9000, Protocol: "sctp"},
				{HostPort: 9001, ContainerPort: 9001, Protocol: "sctp"},
			},
		},
		"the address that a network binds to": {"networks: [bound]\nports: ['80:80', '0.0.0.0:81:81']", func(s *svc) any { return s.Ports }, []compose.Port{{HostIP: addr("10.2.3.4"), HostPort: 80, ContainerPort: 80, Protocol: "tcp"}, {HostIP: addr("0.0.0.0"), HostPort: 81, ContainerPort: 81, Protocol: "tcp"}}},
		"no ports on the host's network":      {"network_mode: host\nports: ['80:80']", func(s *svc) any { return len(s.Ports) }, 0},

		"capabilities": {"cap_add: [net_admin, CAP_SYS_TIME, NET_ADMIN]\ncap_drop: [all]", func(s *svc) any { return [][]string{s.CapAdd, s.CapDrop} }, [][]string{{"CAP_NET_ADMIN", "CAP_SYS_TIME"}, {"ALL"}}},
		"security_opt": {
			"security_opt: [no-new-privileges, 'seccomp:unconfined', apparmor=plant, label=disable, systempaths=unconfined]\nprivileged: true",
			func(s *svc) any {
				return []any{s.NoNewPrivileges, s.Seccomp.Unconfined, s.AppArmor, s.UnmaskedPaths, s.Privileged}
			},
			[]any{true, true, "plant", true, true},
		},
		"a seccomp profile": {"security_opt: ['seccomp=profile.json', 'no-new-privileges:false']", func(s *svc) any { return []any{string(s.Seccomp.Profile), s.NoNewPrivileges} }, []any{"{}", false}},

		"restart of deploy": {"deploy: {restart_policy: {condition: on-failure, delay: 5s, max_attempts: 3, window: 2m}}", func(s *svc) any { return s.Restart }, compose.Restart{Mode: compose.RestartOnFailure, MaxRetries: 3, Delay: 5 * time.Second, Window: 2 * time.Minute}},
		"deploy first":      {"restart: 'no'\ndeploy: {restart_policy: {condition: any}}", func(s *svc) any { return s.Restart }, compose.Restart{Mode: compose.RestartAlways}},
		"stopping":          {"stop_signal: rtmin+3\nstop_grace_period: 1m30s", func(s *svc) any { return []any{s.StopSignal, s.StopGrace} }, []any{"RTMIN+3", of(90 * time.Second)}},
		"no grace":          {"stop_grace_period: 0s", func(s *svc) any { return s.StopGrace }, of(time.Duration(0))},
		"healthcheck": {
			"healthcheck: {test: curl -f localhost, interval: 10s, timeout: 2s, retries: 4, start_period: 1m, start_interval: 500ms}",
			func(s *svc) any { return s.Healthcheck },
			&compose.Healthcheck{Test: []string{"CMD-SHELL", "curl -f localhost"}, Interval: 10 * time.Second, Timeout: 2 * time.Second, Retries: 4, StartPeriod: time.Minute, StartInterval: 500 * time.Millisecond},
		},
		"no healthcheck":               {"healthcheck: {disable: true}", func(s *svc) any { return s.Healthcheck }, &compose.Healthcheck{Test: []string{"NONE"}}},
		"no healthcheck by its test":   {"healthcheck: {test: [NONE]}", func(s *svc) any { return s.Healthcheck }, &compose.Healthcheck{Test: []string{"NONE"}}},
		"the image's, at another pace": {"healthcheck: {interval: 1s}", func(s *svc) any { return s.Healthcheck }, &compose.Healthcheck{Interval: time.Second}},
		"hooks":                        {"post_start: [{command: 'echo a b', user: root, privileged: true, working_dir: /x, environment: [TOKEN, A=1]}]\npre_stop: [{command: [x]}]", func(s *svc) any { return append(s.PostStart, s.PreStop...) }, []compose.Hook{{Command: []string{"echo", "a", "b"}, User: "root", Privileged: true, WorkingDir: "/x", Environment: map[string]string{"TOKEN": "t0ken", "A": "1"}}, {Command: []string{"x"}}}},
		"scale":                        {"scale: 3", func(s *svc) any { return s.Replicas }, 3},
		"replicas":                     {"deploy: {replicas: 0, mode: replicated}", func(s *svc) any { return s.Replicas }, 0},
		"one on every machine":         {"deploy: {mode: global}", func(s *svc) any { return s.Replicas }, 1},
		"a range for replicas":         {"scale: 2\nports: ['8000-8001:80']", func(s *svc) any { return s.Ports }, []compose.Port{{HostPort: 8000, LastPort: 8001, ContainerPort: 80, Protocol: "tcp"}}},
		"logging":                      {"logging: {driver: json-file, options: {max-size: 10m, max-file: '3', tag: x}}", func(s *svc) any { return s.Logging }, compose.Logging{MaxSize: 10 << 20, MaxFile: 3}},
		"no logging":                   {"logging: {driver: none}", func(s *svc) any { return s.Logging }, compose.Logging{None: true}},
		"labels of a file":             {"label_file: [labels]\nlabels: {b: here}", func(s *svc) any { return s.Labels }, map[string]string{"a": "file", "b": "here"}},
		"an environment taken raw":     {"env_file: [{path: raw.env, format: raw}]", func(s *svc) any { return s.Environment }, map[string]string{"A": "'$TOKEN' # x", "TOKEN": "t0ken"}},
		"a build with an image":        {"build: {context: ., platforms: [linux/arm64]}\ndevelop: {watch: [{path: ., action: rebuild}]}", func(s *svc) any { return s.Image }, "docker.io/library/nginx:latest"},
		"what is for clusters":         {"deploy: {placement: {constraints: [a==b]}, update_config: {order: start-first}, endpoint_mode: vip, labels: {a: b}, resources: {reservations: {cpus: '1'}}}\nattach: false", func(s *svc) any { return s.Replicas }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := loaded(t, map[string]string{
				"compose.yaml": service(c.keys) + `
networks:
  front: {enable_ipv6: true, ipam: {config: [{subnet: 10.9.0.0/24, gateway: 10.9.0.1}, {subnet: 'fd00::/64'}]}}
  inner: {internal: true}
  other:
  bound: {driver_opts: {com.docker.network.bridge.host_binding_ipv4: 10.2.3.4}}
  outside: {external: true, name: host}
secrets: {token: {environment: TOKEN}}
configs: {plain: {content: "with $TOKEN\n"}}
`,
				"profile.json": "{}",
				"labels":       "a=file\nb=file\n",
				"raw.env":      "# comment\nA='$TOKEN' # x\nTOKEN\nNOBODY\n",
			}, env)
			if diff := cmp.Diff(c.want, c.got(p.Services["web"]), comparable); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestLoadResolvesNetworksAndVolumes(t *testing.T) {
	p := loaded(t, map[string]string{"compose.yaml": `
services:
  web: {image: x, networks: [front, lan, shared, default], volumes: ['nfs:/a', 'ram:/b', 'here:/c', 'theirs:/d', 'plain:/e']}
networks:
  front:
    name: plant-front
    internal: true
    enable_ipv6: true
    driver_opts: {com.docker.network.bridge.enable_icc: "0", com.docker.network.driver.mtu: 1400}
    ipam:
      driver: default
      config:
        - {subnet: 10.9.0.0/16, ip_range: 10.9.5.0/24, gateway: 10.9.0.1, aux_addresses: {printer: 10.9.0.7}}
        - {subnet: "fd00:9::/64"}
    labels: {owner: plant}
  lan: {driver: macvlan, driver_opts: {parent: eth0.100, macvlan_mode: bridge}}
  shared: {external: true, name: other_default}
  unused: {ipam: {config: [{subnet: 10.9.0.0/16}]}}
volumes:
  nfs: {driver_opts: {type: nfs, o: "addr=10.0.0.5,rw", device: ":/export"}}
  ram: {driver_opts: {type: tmpfs, device: tmpfs, o: "size=10m,uid=5"}}
  here: {driver: local, driver_opts: {type: none, o: bind, device: ./data}}
  theirs: {external: true, name: other_data}
  plain: {name: named, labels: {a: b}}
  unused:
`}, nil)
	prefix := netip.MustParsePrefix
	networks := map[string]*compose.Network{
		"default": {Name: "plant_default", Driver: "bridge"},
		"front": {
			Name: "plant-front", Driver: "bridge", Internal: true, IPv6: true,
			Options: map[string]string{compose.OptionICC: "false", compose.OptionMTU: "1400"},
			Pools: []compose.Pool{
				{Subnet: prefix("10.9.0.0/16"), Gateway: addr("10.9.0.1"), Range: prefix("10.9.5.0/24"), Taken: map[string]netip.Addr{"printer": addr("10.9.0.7")}},
				{Subnet: prefix("fd00:9::/64")},
			},
		},
		"lan":    {Name: "plant_lan", Driver: "macvlan", Options: map[string]string{compose.OptionParent: "eth0.100", compose.OptionMacvlanMode: "bridge"}},
		"shared": {Name: "other_default", External: true},
	}
	expect.Equal(t, p.Networks, networks, "networks")
	volumes := map[string]*compose.Volume{
		"nfs":        {Name: "nfs", Type: "nfs", Device: ":/export", Options: []string{"addr=10.0.0.5", "rw"}},
		"ram":        {Name: "ram", Type: "tmpfs", Device: "tmpfs", Options: []string{"size=10m", "uid=5"}},
		"here":       {Name: "here", Type: "none", Device: filepath.Join(p.WorkingDir, "data"), Options: []string{"bind"}},
		"other_data": {Name: "other_data", External: true},
		"named":      {Name: "named"},
	}
	expect.Equal(t, p.Volumes, volumes, "volumes")
}

func TestLoadTakesVolumesFromOtherServices(t *testing.T) {
	p := loaded(t, map[string]string{"compose.yaml": `
services:
  app: {image: x, volumes: ['data:/data', /cache, '/own:/own']}
  side: {image: x, volumes_from: ['app:ro'], volumes: ['/mine:/own']}
  last: {image: x, volumes_from: [side]}
volumes: {data: }
`}, nil)
	want := []compose.Mount{
		{Anonymous: true, Of: "app", Target: "/cache", ReadOnly: true},
		{Volume: "data", Target: "/data", ReadOnly: true},
		{Path: "/mine", Target: "/own", Create: true},
	}
	for _, service := range []string{"side", "last"} {
		expect.Equal(t, p.Services[service].Mounts, want, "mounts of %s", service)
	}
	expect.Equal(t, p.Order(), []string{"app", "side", "last"}, "order")
}

func TestLoadFindsDependenciesInEveryKey(t *testing.T) {
	p := loaded(t, map[string]string{"compose.yaml": `
services:
  web:
    image: x
    links: [db, 'cache:redis.']
    depends_on:
      db: {condition: service_healthy, restart: true}
      setup: {condition: service_completed_successfully}
      debug: {condition: service_started, required: false}
  side: {image: x, network_mode: 'service:web', pid: 'service:web', ipc: 'service:db', volumes_from: [cache]}
  db: {image: x}
  cache: {image: x}
  setup: {image: x}
  debug: {image: x, profiles: [debug], umask: 0o27}
`}, nil)
	started, yes := compose.ConditionStarted, true
	for service, want := range map[string][]compose.Dependency{
		"web": {
			{Service: "cache", Condition: started, Required: yes, Restart: yes},
			{Service: "db", Condition: compose.ConditionHealthy, Required: yes, Restart: yes},
			{Service: "setup", Condition: compose.ConditionCompleted, Required: yes},
		},
		"side": {
			{Service: "cache", Condition: started, Required: yes},
			{Service: "db", Condition: started, Required: yes, Restart: yes},
			{Service: "web", Condition: started, Required: yes, Restart: yes},
		},
	} {
		expect.Equal(t, p.Services[service].DependsOn, want, "dependencies of %s", service)
	}
	expect.Equal(t, p.Services["web"].Links, []compose.ServiceName{{Service: "cache", Name: "redis"}}, "links")
	expect.Equal(t, p.Services["side"].Network, compose.Namespace{Mode: compose.ModeService, Of: "web"}, "network of side")
}

func TestLoadRunsServicesOfActiveProfiles(t *testing.T) {
	path := filepath.Join(write(t, map[string]string{"compose.yaml": `
services:
  web: {image: x}
  debug: {image: x, profiles: [debug]}
  broken: {build: ., profiles: [broken]}
`}), "compose.yaml")
	for name, c := range map[string]struct {
		asked []string
		env   map[string]string
		want  []string
	}{
		"none":                 {nil, nil, []string{"web"}},
		"asked for":            {[]string{"debug"}, nil, []string{"debug", "web"}},
		"named by a variable":  {nil, map[string]string{"COMPOSE_PROFILES": "test, debug"}, []string{"debug", "web"}},
		"one that is not used": {[]string{"other"}, nil, []string{"web"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := expect.Value(compose.Load(t.Context(), compose.Options{ProjectName: "p", Files: []string{path}, Environment: c.env, Profiles: c.asked}))(t)
			expect.Equal(t, p.Order(), c.want, "services")
		})
	}
}

func TestLoadMergesFilesInTheirOrder(t *testing.T) {
	dir := write(t, map[string]string{
		"base.yaml": "services: {web: {image: x, ports: ['80:80'], environment: {A: base, B: base}, labels: {a: base}, user: '1'}}\n",
		"over.yaml": "version: '3'\nservices: {web: {image: y, ports: !override ['81:81'], environment: {A: over, B: !reset null}, user: !reset null}}\n",
		"last.yaml": "services: {web: {labels: {a: last}, scale: 2, ports: !reset []}, other: {image: z}}\n",
	})
	paths := []string{filepath.Join(dir, "base.yaml"), filepath.Join(dir, "over.yaml"), filepath.Join(dir, "last.yaml")}
	load := func(scale map[string]int, files ...string) (*compose.Project, error) {
		return compose.Load(t.Context(), compose.Options{ProjectName: "p", Files: files, Scale: scale, Strict: true})
	}
	two := expect.Value(load(nil, paths[:2]...))(t)
	web := two.Services["web"]
	expect.Equal(t, web.Ports, []compose.Port{{HostPort: 81, ContainerPort: 81, Protocol: "tcp"}}, "ports")
	expect.Equal(t, web.Environment, map[string]string{"A": "over"}, "environment")
	expect.Equal(t, web.User+web.Image, "docker.io/library/y:latest", "user and image")
	three := expect.Value(load(map[string]int{"other": 5}, paths...))(t)
	web = three.Services["web"]
	if web.Labels["a"] != "last" || web.Replicas != 2 || len(web.Ports) != 0 || three.Services["other"].Replicas != 5 {
		t.Errorf("web is %+v, other has %d replicas", web, three.Services["other"].Replicas)
	}
	expect.ErrorWith(t, expect.ErrorOf(load(map[string]int{"nobody": 1}, paths...)), "there is no such service", "scale of an unknown service")
	expect.ErrorWith(t, expect.ErrorOf(load(map[string]int{"other": 65}, paths...)), "is not between 0 and 64", "a large scale")
	expect.ErrorWith(t, expect.ErrorOf(load(nil)), "0 Compose files are given", "a project of no files")
}

func TestImagesAreNamedByPlatformAndTakeTheMostEagerPolicy(t *testing.T) {
	p := loaded(t, map[string]string{"compose.yaml": `
services:
  a: {image: x, pull_policy: never}
  b: {image: x, pull_policy: always}
  c: {image: x, platform: linux/arm/v7}
`}, nil)
	want := []compose.Image{
		{Ref: "docker.io/library/x:latest", Policy: compose.PullAlways},
		{Ref: "docker.io/library/x:latest", Platform: "linux/arm/v7", Policy: compose.PullMissing},
	}
	expect.Equal(t, p.Images(), want, "images")
}
