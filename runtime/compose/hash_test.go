package compose_test

import (
	"testing"

	"github.com/opencontainers/go-digest"
)

const imageDigest = digest.Digest("sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")

func hash(t testing.TB, file string) string {
	t.Helper()
	p, err := loadFiles(t, map[string]string{"compose.yaml": file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := p.ConfigHash("web", imageDigest)
	if err != nil {
		t.Fatal(err)
	}
	return h
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

// A hash that changes replaces every container of every device with the next
// version of this program: these values are not to be updated.
func TestConfigHashStaysTheSame(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"of the least service":         {"services: {web: {image: nginx}}", "3183bf6fb04f49947fc31cbb6a840aa641bce378ce622a3df5cbe8cb0db6780c"},
		"of a service with everything": {everything, "38c8b3d57261124cc5523dc6c02ca0b1ad59a6db66f7ae2c850063b33c4b0819"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := hash(t, c.file); got != c.want {
				t.Errorf("hash %s, want %s", got, c.want)
			}
		})
	}
}

func TestConfigHashDoesNotDependOnHowAServiceIsWritten(t *testing.T) {
	want := hash(t, everything)
	for name, file := range map[string]string{
		"in another order and form": `
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
`,
	} {
		t.Run(name, func(t *testing.T) {
			if got := hash(t, file); got != want {
				t.Errorf("hash %s, want %s", got, want)
			}
		})
	}
}

func TestConfigHashChangesWithEverythingThatMakesAContainer(t *testing.T) {
	seen := map[string]string{}
	for _, keys := range []string{
		"", "container_name: front", "entrypoint: [a]", "entrypoint: []", "command: [a]", "command: [b]", "command: []",
		"environment: {A: '1'}", "environment: {A: '2'}", "working_dir: /a", "user: '1'", "labels: {a: '1'}", "read_only: true",
		"volumes: ['data:/a']", "volumes: ['data:/b']", "volumes: ['data:/a:ro']", "volumes: ['data:/a:nocopy']",
		"volumes: ['/a:/a']", "volumes: ['/a:/a:rshared']", "volumes: [{type: bind, source: /a, target: /a, bind: {create_host_path: false}}]",
		"tmpfs: /a", "tmpfs: /a:size=1m", "ports: ['1:1']", "ports: ['1:2']", "ports: ['2:1']", "ports: ['1:1/udp']", "ports: ['::1:1:1']",
		"mem_limit: 64m", "cpus: 1", "restart: always", "restart: on-failure", "restart: on-failure:1",
	} {
		h := hash(t, service(keys))
		if other, same := seen[h]; same {
			t.Errorf("%q has the hash of %q", keys, other)
		}
		seen[h] = keys
	}
	p, err := loadFiles(t, map[string]string{"compose.yaml": service("")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := p.ConfigHash("web", digest.FromString("another image"))
	if other, same := seen[h]; same || err != nil {
		t.Errorf("another image has the hash of %q; %v", other, err)
	}
	if _, err := p.ConfigHash("nobody", imageDigest); err == nil {
		t.Error("a service that is not there has a hash")
	}
}

func TestOrderPutsDependenciesFirst(t *testing.T) {
	p, err := loadFiles(t, map[string]string{"compose.yaml": `
services:
  a: {image: x, depends_on: [z, m]}
  b: {image: x}
  m: {image: x, depends_on: {z: {condition: service_started}}}
  z: {image: x}
`}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := p.Order()
	want := []string{"z", "m", "a", "b"}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("order %v, want %v", got, want)
		}
	}
}
