package compose_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/test/expect"
)

const imageDigest = digest.Digest("sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")

func hash(t testing.TB, file string) string {
	t.Helper()
	p := loaded(t, map[string]string{"compose.yaml": file}, nil)
	return expect.Value(p.ConfigHash("web", imageDigest))(t)
}

// everything sets all that makes a container.
const everything = `
services:
  web:
    image: nginx:1
    container_name: front
    entrypoint: [/entry]
    command: [run, "--now"]
    environment: {B: "2", A: "1"}
    working_dir: /srv
    user: "10:20"
    labels: {b: "2", a: "1"}
    volumes: [ "data:/data:nocopy", {type: bind, source: /dev/ttyS0, target: /dev/ttyS0, bind: {propagation: rslave}} ]
    tmpfs: ["/tmp:size=1m,noexec"]
    ports: ["127.0.0.1:8080:80", "53:53/udp"]
    read_only: true
    mem_limit: 64m
    cpus: 0.5
    restart: on-failure:3
volumes: {data: }
`

// more is what services may name.
const more = `
  ram: {driver_opts: {type: tmpfs, device: tmpfs}}
  theirs: {external: true}
configs: {one: {content: "1"}, two: {content: "2"}}
networks:
  front:
  inner: {internal: true}
  shared: {external: true}
`

// withDatabase adds a second service to the file of one.
func withDatabase(file string) string {
	return strings.Replace(file, "\nvolumes:\n", "\n  db: {image: x}\nvolumes:\n", 1)
}

// A hash that changes replaces every container of every device with the next
// version of this program: these values are not to be updated.
func TestConfigHashStaysTheSame(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"of the least service":         {"services: {web: {image: nginx}}", "3183bf6fb04f49947fc31cbb6a840aa641bce378ce622a3df5cbe8cb0db6780c"},
		"of a service with everything": {everything, "38c8b3d57261124cc5523dc6c02ca0b1ad59a6db66f7ae2c850063b33c4b0819"},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, hash(t, c.file), c.want, "hash")
		})
	}
}

// The same holds for whole applications and for every attribute. hashes.json was
// recorded when devices already ran such containers and is not to be updated, either.
func TestConfigHashOfProjectsStaysTheSame(t *testing.T) {
	text, err := os.ReadFile("testdata/hashes.json")
	expect.Check(t, err)
	var want map[string]string
	expect.Check(t, json.Unmarshal(text, &want))
	projects := allProjects(t)
	projects["tags"] = loaded(t, map[string]string{"compose.yaml": taggedProject, "base.yaml": taggedBase}, nil)
	got := map[string]string{}
	for name, p := range projects {
		for service, s := range p.Services {
			for i := range s.Mounts {
				s.Mounts[i].Path = strings.Replace(s.Mounts[i].Path, p.WorkingDir, "/package", 1)
			}
			got[name+" "+service], err = p.ConfigHash(service, imageDigest)
			expect.Check(t, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("hashes (-want +got):\n%s", diff)
	}
}

// taggedProject and taggedBase are merged by their tags, for which they are
// written as YAML once more.
const (
	taggedProject = `
x-all: &all {A: "1", "b c": "it's", D: "0x1f", E: !!str 7, F: "é\n\t'\"", G: "yes", H: 1e3, I: 0o17, J: 2001-01-01, K: "$$HOME"}
services:
  web:
    extends: {file: base.yaml, service: base}
    environment: !override {<<: *all, L: "~", M: "", N: 1.50}
    command: !override ["-c", "a: b", "#c", "- d", "line\nline", "trailing "]
    ports: !reset []
    labels: {text: "|\n  folded", list: "[a]", map: "{a: b}"}
    healthcheck:
      test: |
        one
          two
    tmpfs: !override
      - /run
`
	taggedBase = `
services:
  base:
    image: nginx
    environment: {Z: "26"}
    command: [base]
    ports: ["1:1"]
    tmpfs: [/tmp]
    working_dir: /srv
`
)

func TestConfigHashDoesNotDependOnHowAServiceIsWritten(t *testing.T) {
	want := hash(t, everything)
	got := hash(t, `
version: "3"
x-anything: {}
volumes: {data: {driver: local}}
services:
  web:
    deploy: {resources: {limits: {cpus: "0.50", memory: 64M}}}
    restart: "on-failure:3"
    read_only: true
    expose: [80]
    ports: [{target: 53, published: "53", protocol: udp}, {target: 80, published: "8080", host_ip: 127.0.0.1, mode: host}]
    tmpfs: /tmp:noexec,size=1m
    volumes: ["/dev/ttyS0:/dev/ttyS0:rslave", {type: volume, source: data, target: /data/, volume: {nocopy: true}}]
    labels: [a=1, b=2]
    user: 10:20
    working_dir: /srv
    environment: [A=1, B=2]
    command: run --now
    entrypoint: /entry
    container_name: front
    image: docker.io/library/nginx:1
    depends_on: [db]
  db: {image: postgres}
`)
	expect.Equal(t, got, want, "hash")
}

func TestConfigHashChangesWithEverythingThatMakesAContainer(t *testing.T) {
	seen := map[string]string{}
	for _, keys := range []string{
		"", "container_name: front", "entrypoint: [a]", "entrypoint: []", "command: [a]", "command: [b]", "command: []",
		"environment: {A: '1'}", "environment: {A: '2'}", "working_dir: /a", "user: '1'", "labels: {a: '1'}", "read_only: true",
		"volumes: ['data:/a']", "volumes: ['data:/b']", "volumes: ['data:/a:ro']", "volumes: ['data:/a:nocopy']",
		"volumes: ['/a:/a']", "volumes: ['/a:/a:rshared']", "volumes: [{type: bind, source: /a, target: /a, bind: {create_host_path: false}}]",
		"tmpfs: /a", "tmpfs: /a:size=1m", "ports: ['1:1']", "ports: ['1:2']", "ports: ['2:1']", "ports: ['1:1/udp']", "ports: ['127.0.0.1:1:1']",
		"mem_limit: 64m", "cpus: 1", "restart: always", "restart: on-failure", "restart: on-failure:1",

		"platform: linux/arm/v7", "annotations: {a: b}", "group_add: [a]", "hostname: a", "domainname: a", "tty: true", "stdin_open: true",
		"init: true", "pid: host", "ipc: host", "ipc: shareable", "uts: host", "cgroup: host", "sysctls: {net.a: 1}",
		"ulimits: {core: 0}", "ulimits: {core: 1}", "oom_score_adj: 1", "mem_reservation: 64m", "mem_limit: 64m\nmemswap_limit: -1", "mem_swappiness: 0",
		"mem_swappiness: 1", "oom_kill_disable: true", "cpu_shares: 5", "cpuset: '1'", "pids_limit: 5", "blkio_config: {weight: 10}", "cgroup_parent: a",
		"devices: [/dev/a]", "devices: [/dev/a:/dev/b]", "device_cgroup_rules: ['c 1:1 r']", "gpus: all", "shm_size: 1m",
		"volumes: [/a]", "volumes: ['data:/a:ro']\nread_only: true", "volumes: [{type: bind, source: /a, target: /a, bind: {recursive: disabled}}]", "volumes: [" + bind("/a", "read_only: true, bind: {recursive: writable}") + "]",
		"volumes: [{type: volume, source: data, target: /a, volume: {subpath: b}}]", "volumes: ['ram:/a']", "volumes: ['theirs:/a']",
		"configs: [one]", "configs: [two]", "configs: [{source: one, mode: 0o400}]", "configs: [{source: one, target: /two}]", "configs: [{source: one, uid: '5'}]",
		"network_mode: host", "network_mode: none", "network_mode: container:a", "networks: [front]", "networks: [front, default]",
		"networks: {front: {priority: 1}, default: }", "networks: {default: {aliases: [a]}}", "networks: {default: {interface_name: a}}", "mac_address: 02:00:00:00:00:01",
		"networks: [inner]", "networks: [shared]", "extra_hosts: [a=10.0.0.1]", "extra_hosts: [a=host-gateway]", "links: ['db:a']", "dns: 10.0.0.1", "dns_search: a", "dns_opt: [a]",
		"ports: ['1-2:1']", "ports: ['1']", "cap_add: [ALL]", "cap_drop: [ALL]", "privileged: true", "security_opt: [no-new-privileges]",
		"security_opt: [seccomp=unconfined]", "security_opt: [apparmor=a]", "security_opt: [systempaths=unconfined]",
		"deploy: {restart_policy: {condition: none, delay: 1s}}", "deploy: {restart_policy: {condition: none, window: 1s}}", "stop_signal: HUP", "stop_grace_period: 0s", "stop_grace_period: 1s",
		"healthcheck: {disable: true}", "healthcheck: {interval: 1s}", "post_start: [{command: a}]", "pre_stop: [{command: a}]", "logging: {driver: none}", "logging: {options: {max-file: 5}}",
	} {
		h := hash(t, withDatabase(service(keys))+more)
		if other, same := seen[h]; same {
			t.Errorf("%q has the hash of %q", keys, other)
		}
		seen[h] = keys
	}
	p := loaded(t, map[string]string{"compose.yaml": service("")}, nil)
	h, err := p.ConfigHash("web", digest.FromString("another image"))
	if other, same := seen[h]; same || err != nil {
		t.Errorf("another image has the hash of %q; %v", other, err)
	}
	expect.ErrorWith(t, expect.ErrorOf(p.ConfigHash("nobody", imageDigest)), "not in project", "hash of an unknown service")
}

func TestConfigHashDoesNotDependOnWhatConcernsNoContainer(t *testing.T) {
	want := hash(t, service(""))
	for _, keys := range []string{
		"scale: 3", "deploy: {replicas: 0}", "pull_policy: always", "depends_on: [db]", "profiles: []", "build: .", "attach: false",
		"networks: [default]", "networks: {default: {priority: 5}}", "expose: [80]", "links: [db]",
		"logging: {driver: local}", "ipc: private", "security_opt: [label=disable]",
	} {
		expect.Equal(t, hash(t, withDatabase(service(keys))+"networks: {default: {driver: bridge, labels: {a: b}}}\n"), want, "hash with %q", keys)
	}
	p := loaded(t, map[string]string{"compose.yaml": service("devices: [/dev/a]")}, nil)
	want = expect.Value(p.ConfigHash("web", imageDigest))(t)
	p.Services["web"].Devices[0].Real = "/dev/b"
	got := expect.Value(p.ConfigHash("web", imageDigest))(t)
	expect.Equal(t, got, want, "hash with another place that the path of a device leads to")
}

func TestConfigHashChangesWithWhatAServiceUses(t *testing.T) {
	base := func(network, volume, config string) string {
		return "services: {web: {image: x, networks: [n], volumes: ['vol:/v'], configs: [c]}}\n" +
			"networks: {n: {" + network + "}}\nvolumes: {vol: {" + volume + "}}\nconfigs: {c: {content: '" + config + "'}}\n"
	}
	seen := map[string]bool{}
	for _, file := range []string{
		base("", "", ""), base("internal: true", "", ""), base("enable_ipv6: true", "", ""), base("name: other", "", ""),
		base("ipam: {config: [{subnet: 10.0.0.0/24}]}", "", ""), base("driver_opts: {com.docker.network.driver.mtu: 1400}", "", ""),
		base("", "driver_opts: {type: tmpfs, device: a}", ""), base("", "driver_opts: {type: tmpfs, device: a, o: size=1m}", ""), base("", "", "new"),
	} {
		h := hash(t, file)
		expect.True(t, !seen[h], "the hash of another file: %s", file)
		seen[h] = true
	}
	expect.Equal(t, hash(t, base("labels: {a: b}", "labels: {a: b}", "")), hash(t, base("", "", "")), "hash with labels, which are for people")
}
