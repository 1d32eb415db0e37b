package agent

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

const deploymentOfTests = "6f1f9d3e-9f4d-4c1c-b9a0-3c1f9f1d2e10"

// loadedProject is a project as the engine loads it from a package of files.
func loadedProject(t *testing.T, strict bool, files map[string]string) *runtime.Project {
	t.Helper()
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		check(t, w.WriteHeader(&tar.Header{Name: "app/" + name, Mode: 0o644, Size: int64(len(files[name])), Typeflag: tar.TypeReg}))
		check(t, expect.ErrorOf(w.Write([]byte(files[name]))))
	}
	check(t, errors.Join(w.Close(), z.Close()))
	dir := filepath.Join(t.TempDir(), "projects", "main", "digest")
	extracted := expect.Value(compose.Extract(archive.Bytes(), dir, strict))(t)
	loaded := expect.Value(compose.Load(context.Background(), compose.Options{ProjectName: projectName(deploymentOfTests, "main"), Files: []string{extracted.File}, Package: extracted, Strict: strict}))(t)
	return &runtime.Project{Name: projectName(deploymentOfTests, "main"), Compose: loaded, Directory: dir, Labels: map[string]string{labelDeployment: deploymentOfTests}}
}

func projectOf(t *testing.T, yaml string) *runtime.Project {
	t.Helper()
	return loadedProject(t, true, map[string]string{"compose.yaml": yaml, "conf/a": "a"})
}

// asked is what the service web of a Compose file asks for, beside its image.
func asked(t *testing.T, p *runtime.Project) policy.ServiceAsk {
	t.Helper()
	asks := asksOf(stagedComponent{name: "main", signed: true, project: p})
	i := slices.IndexFunc(asks, func(a policy.ServiceAsk) bool { return a.Service == "web" })
	expect.Require(t, i >= 0, "nothing is known of web: %+v", asks)
	a := asks[i]
	expect.Equal(t, a.Component, "main", "component")
	expect.Equal(t, a.Signed, true, "signed")
	a.Component, a.Service, a.Signed, a.Image, a.Registry, a.Pinned = "", "", false, "", "", false
	return a
}

func TestWhatServicesAskFor(t *testing.T) {
	dir := t.TempDir()
	link := func(name, to string) string {
		path := filepath.Join(dir, name)
		check(t, os.Symlink(to, path))
		return path
	}
	state, run := filepath.Join(dir, "state"), filepath.Join(dir, "run")
	for _, d := range []string{state, filepath.Join(run, "locks"), filepath.Join(dir, "data")} {
		check(t, os.MkdirAll(d, 0o755))
	}
	out, away, round := link("out", "/etc"), link("away", filepath.Join(dir, "nothing/../later")), link("round", filepath.Join(dir, "round"))
	link("locks", filepath.Join(run, "locks"))
	device := link("tty", "/dev/null")

	own := projectPrefix(deploymentOfTests)
	type ask = policy.ServiceAsk
	type mount = policy.MountAsk
	for name, c := range map[string]struct {
		keys string // of the service web
		more string // of the file
		want ask
	}{
		"an ordinary service": {
			keys: "command: [a]\nenvironment: {A: b}\nrestart: always\nvolumes: [data:/data, ./conf:/conf, /anonymous]\nmem_limit: 64m\ncpus: 1\ntmpfs: /run\nexpose: [1]",
			more: "volumes: {data: {}}",
		},
		"privileged":                       {keys: "privileged: true", want: ask{Privileged: true}},
		"a privileged hook":                {keys: "post_start: [{command: a, privileged: true}]", want: ask{Privileged: true}},
		"a privileged hook before the end": {keys: "pre_stop: [{command: a}, {command: a, privileged: true}]", want: ask{Privileged: true}},
		"namespaces of the device": {
			keys: "network_mode: host\npid: host\nipc: host\nuts: host\ncgroup: host",
			want: ask{Namespaces: []string{"cgroup", "ipc", "network", "pid", "uts"}},
		},
		"the network of the device by its name": {keys: "networks: [n]", more: "networks: {n: {name: host, external: true}}", want: ask{Namespaces: []string{"network"}}},
		"namespaces of the project":             {keys: "network_mode: service:db\npid: service:db\nipc: container:" + own + "main-db-1", more: "  db: {image: a, ipc: shareable}"},
		"namespaces of other deployments": {
			keys: "network_mode: container:other-db-1\npid: container:db\nipc: container:0123456789ab", more: "  db: {image: a}",
			want: ask{Shared: []string{"0123456789ab", "db", "other-db-1"}},
		},
		"what other components of the deployment have": {
			keys: "pid: container:" + own + "more-db-1\nnetworks: [n]\nvolumes: ['vol:/v']",
			more: "networks: {n: {external: true, name: " + own + "more_n}}\nvolumes: {vol: {external: true, name: " + own + "more_v}}",
		},
		"a container of the project by its name": {keys: "pid: container:base", more: "  db: {image: a, container_name: base}"},
		"an interface of the device":             {keys: "networks: [n]", more: "networks: {n: {driver: macvlan, driver_opts: {parent: eth0}}}", want: ask{Namespaces: []string{"network"}}},
		"another one":                            {keys: "networks: [n]", more: "networks: {n: {driver: ipvlan, driver_opts: {parent: eth0}}}", want: ask{Namespaces: []string{"network"}}},
		"a network of other deployments":         {keys: "networks: [n]", more: "networks: {n: {external: true}}", want: ask{Shared: []string{"n"}}},
		"it as the default network":              {more: "networks: {default: {external: true, name: plant}}", want: ask{Shared: []string{"plant"}}},
		"a network with a name":                  {keys: "networks: [n]", more: "networks: {n: {name: plant}}"}, // who has it is known when it is made

		"mounts": {
			keys: "volumes: ['/srv/a:/a', '/srv/b/../c/:/b:ro', {type: bind, source: /srv/d, target: /d, read_only: true, bind: {recursive: writable}}]",
			want: ask{Mounts: []mount{{Path: "/srv/a"}, {Path: "/srv/c", ReadOnly: true}, {Path: "/srv/d"}}},
		},
		"a path mounted twice":   {keys: "volumes: ['/srv/a:/a:ro', '/srv/a:/b']", want: ask{Mounts: []mount{{Path: "/srv/a"}}}},
		"a link that leads away": {keys: "volumes: ['" + out + "/ssh:/a']", want: ask{Mounts: []mount{{Path: "/etc/ssh"}}}},
		"a link to nothing":      {keys: "volumes: ['" + away + "/x:/a']", want: ask{Mounts: []mount{{Path: filepath.Join(dir, "later/x")}}}},
		"a link to itself":       {keys: "volumes: ['" + round + ":/a']", want: ask{Mounts: []mount{{Path: round}}}},
		"what a process holds":   {keys: "volumes: ['/proc/self/root/srv:/a']", want: ask{Mounts: []mount{{Path: "/proc/self/root/srv"}}}},
		"state of the agent":     {keys: "volumes: ['" + state + "/x:/a']", want: ask{Mounts: []mount{{Path: filepath.Join(state, "x")}}}},
		"lock files": {
			keys: "volumes: ['" + run + "/locks/id:/a', '" + dir + "/locks:/b']",
			want: ask{Mounts: []mount{{Path: run + "/locks"}, {Path: run + "/locks/id"}}},
		},
		"what only looks like them": {keys: "volumes: ['" + run + "/locks-of-mine:/a']", want: ask{Mounts: []mount{{Path: run + "/locks-of-mine"}}}},
		"volumes_from":              {keys: "volumes_from: [db]", more: "  db: {image: a, volumes: ['/srv/a:/a']}", want: ask{Mounts: []mount{{Path: "/srv/a"}}}},
		"a volume that is a path": {
			keys: "volumes: ['vol:/a:ro']", more: "volumes: {vol: {driver_opts: {type: none, o: bind, device: " + out + "}}}",
			want: ask{Mounts: []mount{{Path: "/etc"}}},
		},
		"a volume that is a path, read-only": {
			keys: "volumes: ['vol:/a']", more: "volumes: {vol: {driver_opts: {o: 'bind,ro', device: /srv/a}}}",
			want: ask{Mounts: []mount{{Path: "/srv/a", ReadOnly: true}}},
		},
		"a volume that nobody mounts": {more: "volumes: {vol: {driver_opts: {o: bind, device: /srv/a}}}"},
		"volumes from elsewhere": {
			keys: "volumes: ['nfs:/a', 'tmp:/b', 'ext:/c']",
			more: "volumes: {nfs: {driver_opts: {type: nfs, device: ':/x', o: addr=10.0.0.1}}, tmp: {driver_opts: {type: tmpfs, device: tmpfs}}, ext: {external: true, name: other_data}}",
			want: ask{Shared: []string{"other_data"}},
		},
		"a disk": {
			keys: "volumes: ['vol:/a']", more: "volumes: {vol: {driver_opts: {type: ext4, device: /dev/sda1, o: 'journal_path=/dev/sdb'}}}",
			want: ask{Devices: []string{"/dev/sda1", "/dev/sdb"}},
		},
		"a volume through which all may be seen": {
			keys: "volumes: ['vol:/a:ro']", more: "volumes: {vol: {driver_opts: {type: overlay, device: overlay, o: 'ro,lowerdir=/etc:/root'}}}",
			want: ask{Mounts: []mount{{Path: "/"}}},
		},

		"devices": {
			keys: "devices: ['/dev/ttyS0:/dev/tty:r', 'vendor.com/class=one', '" + device + "']\ndevice_cgroup_rules: ['c 188:* rwm']\ngpus: all",
			want: ask{Devices: []string{"/dev/null", "/dev/ttyS0", device, "c 188:* rwm", "nvidia.com/gpu=all", "vendor.com/class=one"}},
		},
		"reserved devices": {
			keys: "deploy: {resources: {reservations: {devices: [{driver: cdi, device_ids: [a.com/b=c], capabilities: [x]}]}}}",
			want: ask{Devices: []string{"a.com/b=c"}},
		},
		"capabilities": {keys: "cap_add: [NET_ADMIN, cap_sys_time, ALL]", want: ask{Capabilities: []string{"ALL", "CAP_NET_ADMIN", "CAP_SYS_TIME"}}},
		"unconfined": {
			keys: "security_opt: ['seccomp=unconfined', 'apparmor:unconfined', 'systempaths=unconfined', no-new-privileges, 'label=disable']",
			want: ask{Unconfined: []string{"seccomp", "apparmor", "systempaths"}},
		},
		"confined otherwise": {keys: "security_opt: ['seccomp=./conf/profile.json', 'apparmor=mine']", want: ask{Unconfined: []string{"seccomp", "apparmor"}}},
		"ports": {
			keys: "ports: ['8080:80', '9000-9010:90/udp', '127.0.0.1:8080:80/udp', '70']",
			want: ask{Ports: []policy.PortRange{{First: 49153, Last: 65535}, {First: 8080, Last: 8080}, {First: 9000, Last: 9010}}},
		},
		"reservations": {
			keys: "deploy: {replicas: 2, resources: {limits: {cpus: '2', memory: 64m}, reservations: {cpus: '0.1', memory: 16m}}}",
			want: ask{Reserved: policy.Resources{CPUs: 0.2, Memory: 32 << 20}},
		},
		"a memory reservation":     {keys: "mem_reservation: 8m", want: ask{Reserved: policy.Resources{Memory: 8 << 20}}},
		"more than a number holds": {keys: "mem_reservation: 8000000000g\nscale: 2", want: ask{Reserved: policy.Resources{Memory: math.MaxInt64}}},
		"what does not run":        {keys: "mem_reservation: 8m\nscale: 0\nprivileged: true", want: ask{Privileged: true}},
	} {
		t.Run(name, func(t *testing.T) {
			yaml := "services:\n  web:\n    image: a\n    " + strings.ReplaceAll(c.keys, "\n", "\n    ") + "\n" + c.more + "\n"
			p := loadedProject(t, true, map[string]string{"compose.yaml": yaml, "conf/profile.json": "{}"})
			if diff := cmp.Diff(c.want, asked(t, p), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("it asks otherwise (-want +got):\n%s", diff)
			}
		})
	}
}

// A directory of devices is all that is in it.
func TestADirectoryOfDevices(t *testing.T) {
	got := asked(t, projectOf(t, "services: {web: {image: a, devices: [/dev]}}")).Devices
	for _, want := range []string{"/dev", "/dev/null", "/dev/zero"} {
		expect.Equal(t, slices.Contains(got, want), true, "%s is in %v", want, got)
	}
}

func TestWhereImagesAreFrom(t *testing.T) {
	const pin = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for image, want := range map[string]policy.ServiceAsk{
		"nginx":                      {Image: "docker.io/library/nginx:latest", Registry: "docker.io"},
		"plant.example:5000/a/b:1":   {Image: "plant.example:5000/a/b:1", Registry: "plant.example:5000"},
		"plant.example/a" + pin:      {Image: "plant.example/a" + pin, Registry: "plant.example", Pinned: true},
		"plant.example/a:1.2" + pin:  {Image: "plant.example/a" + pin, Registry: "plant.example", Pinned: true},
		"docker.io/library/nginx:3a": {Image: "docker.io/library/nginx:3a", Registry: "docker.io"},
	} {
		want.Component, want.Service = "main", "web"
		got := asksOf(stagedComponent{name: "main", project: projectOf(t, "services: {web: {image: '"+image+"'}}")})
		expect.Equal(t, got, []policy.ServiceAsk{want}, "%s", image)
	}
	for name, c := range map[string]struct {
		component margo.Component
		verified  bool // when it came
		registry  string
		signed    bool
	}{
		"an artifact":             {margo.Component{Repository: "oci://plant.example:5000/a/b", Revision: "1.0.0", KeyLocation: "https://x/key"}, false, "plant.example:5000", false},
		"a URL":                   {margo.Component{PackageLocation: "https://files.example:8443/a.tgz"}, false, "files.example:8443", false},
		"a URL with a key":        {margo.Component{PackageLocation: "https://files.example/a.tgz", KeyLocation: "https://x/key"}, false, "files.example", true},
		"a URL, keys of the site": {margo.Component{PackageLocation: "https://files.example/a.tgz"}, true, "files.example", true},
	} {
		got := packageAsk(c.component)
		expect.Equal(t, policy.ServiceAsk{Registry: got.Registry, Pinned: got.Pinned, Signed: got.Signed}, policy.ServiceAsk{Registry: c.registry, Pinned: true, Signed: true}, "%s", name)
		expect.Equal(t, isSigned(c.component, &store.Staged{Signed: c.verified}), c.signed, "%s: signed", name)
	}
}

// Packages of early revisions may name any file of the device.
func TestFilesOfTheDeviceThatProjectsRead(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		check(t, os.WriteFile(path, []byte(content), 0o644))
		return path
	}
	config, secret, env, labels := file("config", "c"), file("secret", "s"), file("env", "A=b"), file("labels", "a=b")
	included := file("included.yaml", "services: {third: {image: c}}")
	p := loadedProject(t, false, map[string]string{"own": "own", "compose.yaml": `
include: [` + included + `]
services:
  web:
    image: a
    configs: [c, own]
    secrets: [s]
    env_file: ` + env + `
    label_file: ` + labels + `
    volumes: ['./own:/mine']
  other: {image: b}
configs: {c: {file: ` + config + `}, own: {file: own}}
secrets: {s: {file: ` + secret + `}}
`})
	got := map[string][]policy.MountAsk{}
	for _, a := range asksOf(stagedComponent{name: "main", project: p}) {
		got[a.Service] = a.Mounts
	}
	var read []policy.MountAsk
	for _, path := range slices.Sorted(slices.Values([]string{config, secret, env, labels, included})) {
		read = append(read, policy.MountAsk{Path: container.Real(path), ReadOnly: true})
	}
	expect.Equal(t, got, map[string][]policy.MountAsk{"web": read, "other": read, "third": read}, "mounts")
}

// Whatever the model of the runtime holds either is something that is asked for,
// as the other tests show, or harmless for a reason: who adds a field has to decide.
func TestEveryFieldOfAServiceIsAskedForOrHarmless(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(r reflect.Type)
	walk = func(r reflect.Type) {
		for r.Kind() == reflect.Pointer || r.Kind() == reflect.Slice || r.Kind() == reflect.Map {
			r = r.Elem()
		}
		if r.Kind() != reflect.Struct || !strings.HasSuffix(r.PkgPath(), "runtime/compose") || seen[r] {
			return
		}
		seen[r] = true
		for i := range r.NumField() {
			field := r.Field(i)
			if ask := field.Tag.Get("ask"); !slices.Contains([]string{"device", "own", "bound", "when", "less"}, ask) {
				t.Errorf("%s.%s is tagged as %q: think of what it reaches on the device", r.Name(), field.Name, ask)
			}
			walk(field.Type)
		}
	}
	for _, r := range []reflect.Type{reflect.TypeFor[compose.Service](), reflect.TypeFor[compose.Volume](), reflect.TypeFor[compose.Network]()} {
		walk(r)
	}
}

func TestRefusalsAreNamedAndBounded(t *testing.T) {
	expect.OK(t, notAllowed(nil))
	var f *fault
	err := notAllowed([]policy.Refusal{
		{Rule: "policy.allow.privileged", Component: "main", Service: "web", Text: "privileged"},
		{Rule: "policy.allow.mounts", Component: "main", Service: "db", Text: "mounts /etc"},
	})
	const want = "component main: this device does not allow it: policy.allow.privileged: main/web: privileged; policy.allow.mounts: main/db: mounts /etc"
	expect.Equal(t, errors.As(err, &f) && f.code == codeNotAllowed, true, "the error is a refusal: %v", err)
	expect.Equal(t, err.Error(), want, "refusal")
	var many []policy.Refusal
	for range 1000 {
		many = append(many, policy.Refusal{Rule: "policy.allow.devices", Component: "main", Service: "web", Text: strings.Repeat("ö", 1000)})
	}
	err = notAllowed(append(many, policy.Refusal{Rule: "policy.allow.cpus", Text: "cpus"}))
	expect.Equal(t, errors.As(err, &f) && f.component == "" && len(err.Error()) <= 8192, true, "the bounded error is of the deployment: %v", err)
	expect.ErrorWith(t, err, "; and 985 more", "refusal")
}

// What is judged of a revision that was staged is what its containers mount,
// wherever links lead by then.
func TestPathsAreJudgedByWhereTheyLedAtFirst(t *testing.T) {
	dir := t.TempDir()
	data, link := filepath.Join(dir, "data"), filepath.Join(dir, "link")
	check(t, os.Symlink(data, link))
	load := func() *runtime.Project {
		p := projectOf(t, "services: {web: {image: a, volumes: ['"+link+"/x:/x', 'vol:/v'], devices: ['"+link+"/tty']}}\n"+
			"volumes: {vol: {driver_opts: {type: none, o: bind, device: "+link+"/v}}}")
		container.FindSources(p.Compose, nil)
		return p
	}
	staged := load().Sources()
	check(t, errors.Join(os.Remove(link), os.Symlink("/etc", link)))
	for led, sources := range map[string]map[string]string{container.Real(data): staged, "/etc": nil} {
		p := load()
		p.PinSources(sources)
		got := asked(t, p)
		want := policy.ServiceAsk{Mounts: []policy.MountAsk{{Path: led + "/v"}, {Path: led + "/x"}}, Devices: slices.Sorted(slices.Values([]string{led + "/tty", link + "/tty"}))}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("it asks otherwise (-want +got):\n%s", diff)
		}
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	expect.Check(t, err)
}
