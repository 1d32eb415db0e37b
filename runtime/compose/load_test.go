package compose_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/test/expect"
)

var update = flag.Bool("update", false, "write what the tests get into their golden files")

// write makes a directory of the files given by their names.
func write(t testing.TB, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		expect.Check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		expect.Check(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return dir
}

// loadFiles loads a project of the files given by their names.
func loadFiles(t testing.TB, files map[string]string, env map[string]string) (*compose.Project, error) {
	t.Helper()
	return compose.Load(t.Context(), compose.Options{
		ProjectName: "plant",
		Files:       []string{filepath.Join(write(t, files), "compose.yaml")},
		Environment: env,
		Strict:      true,
		Logs:        compose.Logging{MaxSize: 10 << 20, MaxFile: 5},
	})
}

// loaded is a project of the files given by their names.
func loaded(t testing.TB, files map[string]string, env map[string]string) *compose.Project {
	t.Helper()
	return expect.Value(loadFiles(t, files, env))(t)
}

// bind is a bind mount of a path at the same place, with more keys.
func bind(path, keys string) string {
	return fmt.Sprintf("{type: bind, source: %[1]s, target: %[1]s, %[2]s}", path, keys)
}

// loadService loads a project of the one service web with the keys given.
func loadService(t testing.TB, keys string, env map[string]string) (*compose.Service, error) {
	t.Helper()
	p, err := loadFiles(t, map[string]string{"compose.yaml": service(keys)}, env)
	if err != nil {
		return nil, err
	}
	return p.Services["web"], nil
}

func service(keys string) string {
	return "services:\n  web:\n    image: nginx\n    " + strings.ReplaceAll(keys, "\n", "\n    ") + "\nvolumes:\n  data:\n"
}

// realProjects are the folders of testdata, with the variables that each is given.
var realProjects = map[string]map[string]string{
	"wordpress": {"DB_PASSWORD": "s3cret", "SITE_PORT": "80"},
	"mosquitto": {"BROKER_USER": "given"},
	"influxdb":  nil,

	"cloud":      {"CLOUD_HOST": "files.plant.example", "DB_PASSWORD": "s3cret"},
	"zigbee":     nil,
	"monitoring": {"GRAFANA_PASSWORD": "s3cret"},
	"edge":       {"ZONE": "b"},
}

func loadReal(t *testing.T, project string) *compose.Project {
	t.Helper()
	dir := expect.Value(filepath.Abs(filepath.Join("testdata", project)))(t)
	p, err := compose.Load(t.Context(), compose.Options{
		ProjectName: project,
		Files:       []string{filepath.Join(dir, "compose.yaml")},
		Environment: realProjects[project],
		Strict:      true,
	})
	expect.Check(t, err)
	return p
}

// allProjects are the real ones and those of every attribute, by the names of their files.
func allProjects(t *testing.T) map[string]*compose.Project {
	t.Helper()
	projects := map[string]*compose.Project{}
	for name := range realProjects {
		projects[name] = loadReal(t, name)
	}
	files := expect.Value(filepath.Glob("../../test/compose/testdata/attributes/*.yaml"))(t)
	image := filepath.Join(write(t, map[string]string{"image.yaml": "services: {app: {image: a}}"}), "image.yaml")
	for _, file := range files {
		p, err := compose.Load(t.Context(), compose.Options{ProjectName: "p", Files: []string{file, image}})
		if err == nil { // else it wants an environment, or is refused
			projects[strings.TrimSuffix(filepath.Base(file), ".yaml")] = p
		}
	}
	return projects
}

func TestLoadRealProjects(t *testing.T) {
	for project := range realProjects {
		t.Run(project, func(t *testing.T) {
			p := loadReal(t, project)
			got := append([]byte(strings.ReplaceAll(string(readable(t, p)), p.WorkingDir, "/package")), '\n')
			golden := filepath.Join("testdata", project+".golden.json")
			if *update {
				expect.Check(t, os.WriteFile(golden, got, 0o644))
			}
			want := expect.Value(os.ReadFile(golden))(t)
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("services (-want +got):\n%s", diff)
			}
		})
	}
}

// readable is what a project has, without what it leaves to its default.
func readable(t testing.TB, p *compose.Project) []byte {
	t.Helper()
	contents := map[string]string{}
	for name, s := range p.Services {
		for _, f := range s.Files {
			contents[name+":"+f.Target] = string(f.Content)
		}
	}
	encoded, err := json.Marshal(map[string]any{
		"order": p.Order(), "images": p.Images(), "networks": p.Networks, "volumes": p.Volumes,
		"warnings": p.Warnings, "services": p.Services, "contents": contents,
	})
	expect.Check(t, err)
	var tree any
	expect.Check(t, json.Unmarshal(encoded, &tree))
	return expect.Value(json.MarshalIndent(withoutDefaults(tree), "", "  "))(t)
}

func withoutDefaults(tree any) any {
	switch v := tree.(type) {
	case map[string]any:
		for key, value := range v {
			value = withoutDefaults(value)
			if m, is := value.(map[string]any); value == nil || value == false || value == "" || value == 0.0 || is && len(m) == 0 {
				delete(v, key)
				continue
			}
			v[key] = value
		}
	case []any:
		for i := range v {
			v[i] = withoutDefaults(v[i])
		}
	}
	return tree
}

func TestLoadRefusesWhatIsNotSupported(t *testing.T) {
	const notName = "which is not a name of 1 to 255 printable ASCII characters without spaces and #"
	for name, c := range map[string]struct {
		file string
		want []string
	}{
		"a variable that is not set": {
			"services: {web: {image: 'x:$TAG'}}",
			[]string{
				`service "web": image "x:" is not an image reference: invalid reference format`,
				`variable "TAG" is not set and has no default; using an empty value`,
			},
		},
		"every problem at once": {
			service("provider: {type: x}\numask: 0o27\nstop_signal: BOO\nvolumes: [{type: npipe, source: a, target: /a}]"),
			[]string{
				`service "web": provider is not supported: a device runs containers only`,
				`service "web": stop_signal "BOO" is not a signal`,
				`service "web": umask is not supported: set it in the command of the service`,
				`service "web": volumes.type "npipe" is not supported, only volume, bind, tmpfs`,
			},
		},
		"a build without an image":         {"services: {web: {build: .}}", []string{`service "web": build is not supported: a device does not build images; name an image`}},
		"another form of env_file":         {service("env_file: [{path: compose.yaml, format: odd}]"), []string{`service "web": env_file.format "odd" is not supported, only raw`}},
		"no image":                         {"services: {web: {command: x}}", []string{`service "web": image is missing`}},
		"an image that is none":            {"services: {web: {image: 'Not An Image'}}", []string{`service "web": image "Not An Image" is not an image reference: invalid reference format: repository name (library/Not An Image) must be lowercase`}},
		"a dependency on nothing":          {service("depends_on: [db]"), []string{`service "web": depends_on names "db", which is not a service`}},
		"dependencies in a circle":         {"services: {a: {image: x, depends_on: [b]}, b: {image: x, depends_on: [c]}, c: {image: x, depends_on: [b]}}", []string{`service "b": depends_on is circular: b -> c -> b`}},
		"a port published twice":           {"services: {a: {image: x, ports: ['80:80']}, b: {image: x, ports: ['127.0.0.1:80:81']}}", []string{`service "b": ports publishes port 80/tcp of the device, like service "a"`}},
		"a volume that is not defined":     {service(`volumes: ["nowhere:/x"]`), []string{`service "web": volumes names "nowhere", which is not defined under the top-level volumes`}},
		"an unknown volume option":         {service(`volumes: ["data:/x:exec"]`), []string{`service "web": volumes has option "exec", which is not supported`}},
		"a target mounted twice":           {service("volumes: [\"data:/x\"]\ntmpfs: /x/"), []string{`service "web": tmpfs has target "/x", which is already a mount point`}},
		"a target that is relative":        {service("tmpfs: x"), []string{`service "web": tmpfs has target "x", which is not an absolute path below /`}},
		"a tmpfs option":                   {service("tmpfs: \"/x:mpol=bind\""), []string{`service "web": tmpfs has option "mpol=bind", which is not supported`}},
		"a bind path out of the package":   {service(`volumes: ["../../volumes:/x"]`), []string{`service "web": volumes "../../volumes" leaves the directory of the package`}},
		"the same in the long form":        {service(`volumes: [{type: bind, source: a/../.., target: /x}]`), []string{`service "web": volumes.source "a/../.." leaves the directory of the package`}},
		"the same by a variable":           {service(`volumes: ["${X:-../x}:/x"]`), []string{`service "web": volumes "../x" leaves the directory of the package`}},
		"a path in a list that is merged":  {"x-a: &a [../x]\nservices: {web: {<<: [{image: x, env_file: *a}]}}", []string{`service "web": env_file "../x" leaves the directory of the package`}},
		"a path in another form":           {service("volumes: [!!binary Li4veDoveA==]"), []string{`service "web": volumes "../x" leaves the directory of the package`}},
		"a path of a service with a dot":   {"services: {a.b: {image: x, volumes: ['./../..:/x']}}", []string{`service "a.b": volumes "./../.." leaves the directory of the package`}},
		"a home directory":                 {service(`volumes: ["~/x:/x"]`), []string{`service "web": volumes "~/x" starts in a home directory, which a device does not have`}},
		"an env_file out of the package":   {service("env_file: [../.env]"), []string{`service "web": env_file "../.env" leaves the directory of the package`}},
		"an absolute env_file":             {service("env_file: [{path: /etc/passwd}]"), []string{`service "web": env_file.path "/etc/passwd" leaves the directory of the package`}},
		"an include out of the package":    {"include: [../x.yaml]\n" + service(""), []string{`include "../x.yaml" leaves the directory of the package`}},
		"a remote include":                 {"include: ['https://example.com/x.yaml']\n" + service(""), []string{`include "https://example.com/x.yaml" is remote; a project cannot download parts of itself`}},
		"an extends out of the package":    {service("extends: {file: /etc/x.yaml, service: a}"), []string{`service "web": extends.file "/etc/x.yaml" leaves the directory of the package`}},
		"a volume of another driver":       {service("") + "  b: {driver: nfs}\n", []string{`volumes.b.driver "nfs" is not supported, only local`}},
		"two volumes in one":               {service("") + "  b: {name: data}\n", []string{`volumes.data has the same name as volume "b"`}},
		"a volume that climbs":             {service("") + "  ..: {}\n", []string{"volumes... has an invalid name: use letters, digits, _, . and -"}},
		"a service that climbs":            {"services: {..: {image: x}}", []string{`service "..": services has an invalid name: use letters, digits, _, . and -`}},
		"an odd restart policy":            {service("restart: on-failure:many"), []string{`service "web": restart "on-failure:many" is not supported, only no, always, unless-stopped, on-failure, on-failure:<number>`}},
		"limits that differ":               {service("mem_limit: 64m\ndeploy: {resources: {limits: {memory: 65m}}}"), []string{`service "web": mem_limit differs from deploy.resources.limits.memory`}},
		"a fraction of bytes":              {service("mem_limit: 1e9"), []string{`service "web": mem_limit is 1e+09, which is not a whole number of bytes; add a unit, such as 64m`}},
		"no memory to speak of":            {service("mem_limit: 1k"), []string{`service "web": mem_limit is 1024 bytes; the minimum is 6m`}},
		"a label of the runtime":           {service("labels: {com.docker.compose.project: other}"), []string{`service "web": labels cannot have "com.docker.compose.project": names starting with com.docker.compose. are reserved`}},
		"two containers of one name":       {"services: {a: {image: x, container_name: one}, b: {image: x, container_name: one}}", []string{`service "b": container_name "one" is already that of service "a"`}},
		"more ports than reasonable":       {service(`ports: ["1-65535:1-65535", "1-65535:1-65535"]`), []string{`service "web": ports are too many: one file can publish at most 1024`}},
		"no services":                      {"volumes: {a: }", []string{"services are 0; a project needs 1 to 64"}},
		"profiles of which none is active": {service("profiles: [debug]"), []string{"services all belong to inactive profiles"}},
		"a dependency of another profile":  {"services: {a: {image: x, depends_on: [b]}, b: {image: x, profiles: [debug, test]}}", []string{`service "a": depends_on names "b", whose profiles debug, test are not active`}},
		"a link to nothing":                {service("links: ['db:sql']"), []string{`service "web": links names "db", which is not a service`}},
		"a circle over other keys":         {"services: {a: {image: x, network_mode: 'service:b'}, b: {image: x, volumes_from: [c]}, c: {image: x, pid: 'service:a'}}", []string{`service "a": depends_on is circular: a -> b -> c -> a`}},

		"jobs":                          {service("") + "jobs: {a: {image: x, triggers: {manual: true}}}\n", []string{`jobs is not supported: define it as a service with restart: "no"`}},
		"models":                        {service("models: [a]") + "models: {a: {model: x}}\n", []string{"models is not supported: a device does not run models; define one as a service", `service "web": models is not supported: a device does not run models; define one as a service`}},
		"volumes of others":             {service("volumes_from: ['container:a']"), []string{`service "web": volumes_from "container:a" is not supported: use the volumes of a service of the project`}},
		"another runtime":               {service("runtime: kata"), []string{`service "web": runtime "kata" is not supported, only runc, io.containerd.runc.v2`}},
		"users of its own":              {service("userns_mode: keep-id"), []string{`service "web": userns_mode "keep-id" is not supported, only host: containers use the users of the device`}},
		"another platform":              {service("platform: windows/amd64"), []string{`service "web": platform "windows/amd64" is not a Linux platform`}},
		"a policy of builds":            {service("pull_policy: build"), []string{`service "web": pull_policy "build" is not supported: a device does not build images`}},
		"more replicas than reasonable": {service("scale: 65"), []string{`service "web": scale is 65, which is not between 0 and 64`}},
		"numbers of replicas":           {service("scale: 2\ndeploy: {replicas: 3}"), []string{`service "web": scale differs from deploy.replicas`}},
		"one name for two replicas":     {service("scale: 2\ncontainer_name: one"), []string{`service "web": container_name is one name for 2 replicas`}},
		"one port for two replicas":     {service("scale: 2\nports: ['80:80']"), []string{`service "web": ports publishes 80 as 80, too few ports for 2 replicas; use a range, or omit the host port`}},
		"a mode of a swarm":             {service("deploy: {mode: replicated-job}"), []string{`service "web": deploy.mode "replicated-job" is not supported, only replicated, global`}},
		"attempts without an end":       {service("deploy: {restart_policy: {condition: any, max_attempts: 3}}"), []string{`service "web": deploy.restart_policy.max_attempts applies only to condition: on-failure`}},

		"a capability that is none":      {service("cap_add: [FLY]"), []string{`service "web": cap_add has "FLY", which is not a capability`}},
		"a security option":              {service("security_opt: ['spectre=off']"), []string{`service "web": security_opt "spectre=off" is not supported`}},
		"a profile out of the package":   {service("security_opt: ['seccomp=../x.json']"), []string{`service "web": security_opt seccomp "../x.json" leaves the directory of the package`}},
		"a sysctl of the device":         {service("sysctls: {vm.swappiness: '1'}"), []string{`service "web": sysctls.vm.swappiness is not supported: it belongs to the whole device, not to a container`}},
		"a sysctl of the host's network": {service("sysctls: {net.core.somaxconn: '1'}\nnetwork_mode: host"), []string{`service "web": sysctls.net.core.somaxconn cannot be combined with network_mode host: it would change the namespace of others`}},
		"an unknown ulimit":              {service("ulimits: {files: 3}"), []string{`service "web": ulimits.files is not supported, only as, core, cpu, data, fsize, locks, memlock, msgqueue, nice, nofile, nproc, rss, rtprio, rttime, sigpending, stack`}},
		"a soft limit over the hard":     {service("ulimits: {nofile: {soft: 5, hard: 4}}"), []string{`service "web": ulimits.nofile has a soft limit of 5 above its hard limit of 4`}},
		"a device without a path":        {service("devices: [ttyS0]"), []string{`service "web": devices has "ttyS0" for "ttyS0"; use absolute paths, or the name of a CDI device such as vendor.com/class=name`}},
		"malformed device rules": {service("device_cgroup_rules: ['c 1 rwm', 'x 1:3 r', 'c 1:99999999999 r', 'c 1:3 ']"), []string{
			`service "web": device_cgroup_rules has "c 1 rwm"; use a rule such as "c 188:* rwm"`,
			`service "web": device_cgroup_rules has "c 1:3 "; use a rule such as "c 188:* rwm"`,
			`service "web": device_cgroup_rules has "c 1:99999999999 r"; use a rule such as "c 188:* rwm"`,
			`service "web": device_cgroup_rules has "x 1:3 r"; use a rule such as "c 188:* rwm"`,
		}},
		"devices of another driver": {service("deploy: {resources: {reservations: {devices: [{driver: amd, capabilities: [gpu]}]}}}"), []string{`service "web": deploy.resources.reservations.devices.driver "amd" is not supported, only nvidia, cdi`}},
		"devices of another sort":   {service("deploy: {resources: {reservations: {devices: [{capabilities: [tpu]}]}}}"), []string{`service "web": deploy.resources.reservations.devices.capabilities ["tpu"] are not supported, only gpu; for other devices use driver cdi`}},

		"swap less than memory":     {service("mem_limit: 64m\nmemswap_limit: 32m"), []string{`service "web": memswap_limit is less than mem_limit: it is the limit of memory and swap together`}},
		"swap without memory":       {service("memswap_limit: 32m"), []string{`service "web": memswap_limit needs mem_limit: it is the limit of memory and swap together`}},
		"a reservation over memory": {service("mem_limit: 32m\nmem_reservation: 64m"), []string{`service "web": mem_reservation is more than mem_limit`}},
		"two bounds of CPUs":        {service("cpus: 1\ncpu_quota: 50000"), []string{`service "web": cpu_quota cannot be combined with cpus`}},
		"CPUs that are none":        {service("cpuset: a-b"), []string{`service "web": cpuset "a-b" is not a list of CPUs such as 0-2,4`}},
		"more than a year":          {service("stop_grace_period: 10000h"), []string{`service "web": stop_grace_period is 10000h, which is not between 0 and a year`}},
		"a pace for no device":      {service("healthcheck: {interval: 1us}"), []string{`service "web": healthcheck.interval is 1us; the minimum is 1ms`}},
		"a group with a space":      {service("group_add: [a b]"), []string{`service "web": group_add "a b" is not the name or number of a group`}},
		"a cgroup that climbs":      {service("cgroup_parent: a/../../b"), []string{`service "web": cgroup_parent "a/../../b" is not a cgroup path`}},
		"a weight out of bounds":    {service("blkio_config: {weight: 5}"), []string{`service "web": blkio_config.weight is 5, which is not between 10 and 1000`}},
		"a swappiness over 100":     {service("mem_swappiness: 101"), []string{`service "web": mem_swappiness is 101, which is not between 0 and 100`}},

		"a network that is not defined": {service("networks: [front]"), []string{`service "web": networks names "front", which is not defined under the top-level networks`}},
		"a driver of networks":          {service("networks: [a]") + "networks: {a: {driver: overlay}}\n", []string{`networks.a.driver "overlay" is not supported, only bridge, macvlan, ipvlan: for host and none, set network_mode in the service`}},
		"an option of a network":        {service("networks: [a]") + "networks: {a: {driver_opts: {com.docker.network.bridge.name: br0}}}\n", []string{`networks.a.driver_opts.com.docker.network.bridge.name is not supported by driver bridge`}},
		"a value of such an option":     {service("networks: [a]") + "networks: {a: {driver_opts: {com.docker.network.driver.mtu: large}}}\n", []string{`networks.a.driver_opts.com.docker.network.driver.mtu cannot be "large"`}},
		"a driver of addresses":         {service("networks: [a]") + "networks: {a: {ipam: {driver: dhcp}}}\n", []string{`networks.a.ipam.driver "dhcp" is not supported, only default: this runtime assigns the addresses itself`}},
		"a subnet with host bits":       {service("networks: [a]") + "networks: {a: {ipam: {config: [{subnet: 10.1.2.3/24}]}}}\n", []string{`networks.a.ipam.config has subnet 10.1.2.3/24; use 10.1.2.0/24`}},
		"a gateway outside":             {service("networks: [a]") + "networks: {a: {ipam: {config: [{subnet: 10.1.2.0/24, gateway: 10.1.3.1}]}}}\n", []string{`networks.a.ipam.config has gateway 10.1.3.1, which is not within 10.1.2.0/24`}},
		"two pools of a family":         {service("networks: [a]") + "networks: {a: {ipam: {config: [{subnet: 10.1.2.0/24}, {subnet: 10.1.3.0/24}]}}}\n", []string{`networks.a.ipam.config has several pools of one family; use one for IPv4 and one for IPv6`}},
		"pools that overlap":            {service("networks: [a, b]") + "networks: {a: {ipam: {config: [{subnet: 10.1.0.0/16}]}}, b: {ipam: {config: [{subnet: 10.1.3.0/24}]}}}\n", []string{`networks.b.ipam.config has subnet 10.1.3.0/24, which overlaps 10.1.0.0/16 of network "a"`}},
		"an address without a pool":     {service("networks: {a: {ipv4_address: 10.1.2.3}}") + "networks: {a: }\n", []string{`service "web": networks.a.ipv4_address 10.1.2.3 needs a subnet of its family in ipam of network "plant_a"`}},
		"an address outside its pool":   {service("networks: {a: {ipv4_address: 10.1.3.3}}") + "networks: {a: {ipam: {config: [{subnet: 10.1.2.0/24}]}}}\n", []string{`service "web": networks.a.ipv4_address has address 10.1.3.3, which is not within 10.1.2.0/24`}},
		"an address given twice":        {"services: {a: {image: x, networks: {n: {ipv4_address: 10.1.2.3}}}, b: {image: x, networks: {n: {ipv4_address: 10.1.2.3}}}}\nnetworks: {n: {ipam: {config: [{subnet: 10.1.2.0/24}]}}}\n", []string{`service "b": networks.n has address 10.1.2.3, like service "a"`}},
		"one link on two networks":      {service("networks: {a: {interface_name: x}, b: {interface_name: x}}") + "networks: {a: , b: }\n", []string{`service "web": networks.b.interface_name "x" is also used on network "a"`}},
		"networks and a mode":           {service("network_mode: host\nnetworks: [default]"), []string{`service "web": network_mode cannot be combined with networks`}},
		"a mode of networks":            {service("network_mode: slirp4netns"), []string{`service "web": network_mode "slirp4netns" is not supported, only default, private, bridge, host, none, service:<name>, container:<name>`}},
		"ports in another's network":    {"services: {a: {image: x, network_mode: 'service:b', ports: ['1:1']}, b: {image: x}}", []string{`service "a": ports must be published by the service whose network this one shares (network_mode service:b)`}},
		"a port on an address of IPv6":  {service("ports: ['[::1]:80:80', '[::]:81:80']"), []string{`service "web": ports publishes 80 on ::, but network "default" has no IPv6: set its enable_ipv6: true`, `service "web": ports publishes 80 on ::1, but network "default" has no IPv6: set its enable_ipv6: true`}},
		"a port on an address of IPv4":  {service("ports: ['127.0.0.1:80:80']") + "networks: {default: {enable_ipv4: false, enable_ipv6: true}}\n", []string{`service "web": ports publishes 80 on 127.0.0.1, but network "default" has no IPv4: remove its enable_ipv4: false`}},
		"a group as network card":       {service("mac_address: 01:00:5e:00:00:01"), []string{`service "web": mac_address "01:00:5e:00:00:01" is not a MAC address`}},
		"a name server by name":         {service("dns: [dns.example]"), []string{`service "web": dns has "dns.example", which is not an address`}},
		"a host without an address":     {service("extra_hosts: ['a=b']"), []string{`service "web": extra_hosts has "b" for a; use an address or host-gateway`}},
		"more than a name in files": {
			"services: {db: {image: x}, web: {image: x, extra_hosts: {'a b': 10.0.0.1}, hostname: \"a\\nb\", domainname: a#, links: ['db:ä'], networks: {default: {aliases: [.]}}, dns_search: [a b]}}",
			[]string{
				`service "web": dns_search has "a b", ` + notName, `service "web": domainname "a#" is not a name of at most 64 printable ASCII characters without spaces and #`, `service "web": extra_hosts has "a b", ` + notName,
				`service "web": hostname "a\nb" is not a name of at most 64 printable ASCII characters without spaces and #`, `service "web": links has "ä", ` + notName, `service "web": networks.default.aliases has ".", ` + notName,
			},
		},
		"a hostname for no kernel": {service("hostname: " + strings.Repeat("a", 65)), []string{`service "web": hostname "` + strings.Repeat("a", 65) + `" is not a name of at most 64 printable ASCII characters without spaces and #`}},
		"a link called all":        {service("networks: {default: {interface_name: all}}"), []string{`service "web": networks.default.interface_name "all" is not the name of a network interface, of at most 15 bytes`}},
		"a setting of no link": {
			service("networks: {default: {driver_opts: {com.docker.network.endpoint.sysctls: net.ipv4.x.IFNAME.y=1}}}"),
			[]string{`service "web": networks.default.driver_opts.com.docker.network.endpoint.sysctls has "net.ipv4.x.IFNAME.y=1"; use net.ipv4.conf.IFNAME.name=value`},
		},

		"a subpath that climbs":        {service("volumes: [{type: volume, source: data, target: /x, volume: {subpath: ../a}}]"), []string{`service "web": volumes.volume.subpath "../a" leads out of the volume`}},
		"a bind without a device":      {service("") + "  b: {driver_opts: {type: none, o: bind}}\n", []string{"volumes.b.driver_opts have no device"}},
		"a bind out of the package":    {service("") + "  b: {driver: local, driver_opts: {type: none, o: bind, device: ../x}}\n", []string{`volumes.b.driver_opts.device "../x" leaves the directory of the package`}},
		"an unknown option of volumes": {service("") + "  b: {driver_opts: {size: 1g}}\n", []string{"volumes.b.driver_opts have no type", "volumes.b.driver_opts.size is not supported, only type, o, device"}},
		"an image as a volume":         {service("volumes: [{type: image, source: x, target: /x}]"), []string{`service "web": volumes.type "image" is not supported, only volume, bind, tmpfs`}},

		"a secret that is not defined": {service("secrets: [a]"), []string{`service "web": secrets names "a", which is not defined under the top-level secrets`}},
		"a secret of a store":          {service("") + "secrets: {a: {external: true}}\n", []string{"secrets.a.external is not supported: a device has no store of secrets; use file or environment"}},
		"a secret out of the package":  {service("secrets: [a]") + "secrets: {a: {file: ../x}}\n", []string{`secrets.a.file "../x" leaves the directory of the package`}},
		"a secret that nothing sets":   {service("secrets: [a]") + "secrets: {a: {environment: NOBODY}}\n", []string{`secrets.a.environment names "NOBODY", which nothing sets`}},
		"a config over another mount":  {service("configs: [{source: a, target: /x}]\ntmpfs: /x") + "configs: {a: {content: x}}\n", []string{`service "web": configs has target "/x", which is already a mount point`}},
		"an owner by name":             {service("configs: [{source: a, uid: root}]") + "configs: {a: {content: x}}\n", []string{`service "web": configs.uid "root" is not a number`}},
		"another logging driver":       {service("logging: {driver: syslog}"), []string{`service "web": logging.driver "syslog" is not supported, only json-file, local, none`}},
		"read-only below alone":        {service("volumes: [" + bind("/a", "bind: {recursive: readonly}") + "]"), []string{`service "web": volumes.bind.recursive readonly needs read_only: true`}},
		"an option of another driver":  {service("logging: {options: {syslog-address: x}}"), []string{`service "web": logging.options.syslog-address is not supported, only max-size, max-file, compress, env, env-regex, labels, labels-regex, max-buffer-size, mode, tag`}},
		"a health check of words":      {service("healthcheck: {test: [curl, localhost]}"), []string{`service "web": healthcheck.test must be NONE, CMD with a command, or CMD-SHELL with one line`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadFiles(t, map[string]string{"compose.yaml": c.file}, nil)
			expect.Require(t, err != nil, "loaded")
			var unsupported *compose.Error
			expect.True(t, errors.As(err, &unsupported), "error is not a *compose.Error: %v", err)
			want := "cannot load Compose file compose.yaml: " + strings.Join(c.want, "\n")
			expect.Equal(t, err.Error(), want, "error")
		})
	}
}

func TestLoadAcceptsWhatAsksForNothing(t *testing.T) {
	_, err := loadService(t, strings.Join([]string{
		"privileged: false", "init: false", "tty: false", "healthcheck: {}", "dns: []", "cap_add: []", "profiles: []",
		"use_api_socket: false", "expose: [80]", "networks: [default]", "x-team: {any: [thing]}", "deploy: {x-note: 1}",
	}, "\n"), nil)
	expect.OK(t, err)
}

func TestLoadIgnoresWithAWarning(t *testing.T) {
	for keys, want := range map[string]string{
		"build: .": "build is ignored: a device does not build images; the named image is pulled",
		"develop: {watch: [{path: a, action: sync, target: /a}]}":             "develop is ignored: a device is not for development",
		"dns: [10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4]":                       "dns has 4 servers: only the first 3 are asked",
		"pull_policy: every_12h":                                              `pull_policy "every_12h" is treated as missing: images are pulled only once`,
		"volumes: ['/a:/a:Z']":                                                "volumes.bind.selinux is ignored: files are not relabelled",
		"volumes: [{type: bind, source: /a, target: /a, bind: {selinux: z}}]": "volumes.bind.selinux is ignored: files are not relabelled",
		"deploy: {resources: {reservations: {generic_resources: [{discrete_resource_spec: {kind: a, value: 1}}]}}}": "deploy.resources.reservations.generic_resources is ignored: it is for clusters; a device is one machine",
		"deploy: {resources: {reservations: {devices: [{capabilities: [gpu], options: {a: b}}]}}}":                  "deploy.resources.reservations.devices.options is ignored: CDI has no options",
		"network_mode: host\nports: ['1:1']":  "ports have no effect with network_mode host",
		"network_mode: bridge":                "network_mode bridge uses the default network of the project, which other projects do not share",
		"security_opt: ['label:disable']":     `security_opt "label:disable" is ignored: processes have no SELinux labels`,
		"logging: {options: {tag: a}}":        "logging.options.tag is ignored: logs contain only the output of a service",
		"logging: {options: {max-size: 10g}}": "logging.options.max-size 10g is reduced to the 10485760 bytes of runtime.logs.maxSize in the device's configuration",
		"logging: {options: {max-file: 100}}": "logging.options.max-file 100 is reduced to the 5 of runtime.logs.maxFile in the device's configuration",
	} {
		t.Run(keys, func(t *testing.T) {
			p := loaded(t, map[string]string{"compose.yaml": service(keys)}, nil)
			expect.Equal(t, p.Warnings, []string{`service "web": ` + want}, "warnings")
		})
	}
}

func TestLoadWarnsOfWhatHasNoMeaningOutsideOfServices(t *testing.T) {
	p := loaded(t, map[string]string{"compose.yaml": service("networks: [a]") + `
networks: {a: {ipam: {config: [{subnet: "fd00::/64"}]}}}
configs: {a: {content: x, labels: {a: b}}}
secrets: {a: {file: compose.yaml, labels: {a: b}}}
`}, nil)
	want := []string{
		"configs.a.labels is ignored: a config is a file, and files have no labels",
		"networks.a.ipam.config is ignored: pool fd00::/64 is IPv6, and enable_ipv6 is not true",
		"secrets.a.labels is ignored: a secret is a file, and files have no labels",
	}
	expect.Equal(t, p.Warnings, want, "warnings")
}

func TestLoadRefusesMalformedFiles(t *testing.T) {
	bomb := "x-0: &0 [a, a, a, a, a, a, a, a, a, a]\n"
	for i := 1; i < 9; i++ {
		n := string(rune('0' + i))
		p := string(rune('0' + i - 1))
		bomb += "x-" + n + ": &" + n + " [" + strings.TrimSuffix(strings.Repeat("*"+p+", ", 10), ", ") + "]\n"
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"an empty file":               {map[string]string{"compose.yaml": ""}, "file is empty"},
		"no mapping":                  {map[string]string{"compose.yaml": "- a\n"}, "cannot"},
		"not YAML":                    {map[string]string{"compose.yaml": "a: [\n"}, "line"},
		"too many documents":          {map[string]string{"compose.yaml": service("") + strings.Repeat("---\nx-a: b\n", 256)}, "more than 256 files and YAML documents"},
		"a mistake in the second one": {map[string]string{"compose.yaml": service("") + "---\nservices: {web: {imag: x}}"}, "imag"},
		"a key twice":                 {map[string]string{"compose.yaml": "services: {}\nservices: {}\n"}, "already defined"},
		"a wrong type":                {map[string]string{"compose.yaml": service("command: {a: b}")}, "command"},
		"a wrong type of image":       {map[string]string{"compose.yaml": "services: {web: {image: [x]}}"}, "services.web.image must be a string"},
		"a service of the wrong type": {map[string]string{"compose.yaml": "services: {web: 1}"}, "services.web must be a mapping"},
		"a value of no such kind":     {map[string]string{"compose.yaml": service("cgroup: none")}, "services.web.cgroup value must be one of 'host', 'private'"},
		"a value of another form":     {map[string]string{"compose.yaml": service("pull_policy: often")}, "services.web.pull_policy 'often' does not match pattern"},
		"a key that is left out":      {map[string]string{"compose.yaml": service("depends_on: {db: {}}")}, "services.web.depends_on.db missing property 'condition'"},
		"a name with a space":         {map[string]string{"compose.yaml": "services: {a b: {image: x}}"}, "services cannot have 'a b'"},
		"an unknown key of the file":  {map[string]string{"compose.yaml": service("") + "nonsense: 1\n"}, "compose.yaml: the file cannot have 'nonsense'"},
		"an unknown key of a service": {map[string]string{"compose.yaml": service("imagine: x")}, "compose.yaml: services.web.imagine is not supported"},
		"an unknown key deep below":   {map[string]string{"compose.yaml": service("deploy: {resources: {limits: {watts: 5}}}")}, "services.web.deploy.resources.limits cannot have 'watts'"},
		"an unknown key in extends":   {map[string]string{"compose.yaml": service("extends: {file: a.yaml, service: a}"), "a.yaml": "services: {a: {nonsense: 1}}"}, "services.web.nonsense is not supported"},
		"an unknown key in include":   {map[string]string{"compose.yaml": "include: [a.yaml]\n" + service(""), "a.yaml": "services: {a: {image: x, nonsense: 1}}"}, "services.a.nonsense is not supported"},
		"an unknown key of include":   {map[string]string{"compose.yaml": "include: [{path: a.yaml, nonsense: 1}]\n" + service(""), "a.yaml": "services: {a: {image: x}}"}, "include.0 cannot have 'nonsense'"},
		"an include of nothing":       {map[string]string{"compose.yaml": "include: [5]\n" + service("")}, "include.0 must be a"},
		"an unknown key of a tag":     {map[string]string{"compose.yaml": service("deploy: !override {nonsense: 1}")}, "services.web.deploy cannot have 'nonsense'"},
		"an unknown key of a build":   {map[string]string{"compose.yaml": service("build: {nonsense: 1}")}, "services.web.build cannot have 'nonsense'"},
		"tags of its own":             {map[string]string{"compose.yaml": service("ports: !vault []")}, "tag !vault is not supported"},
		"a text of no known form":     {map[string]string{"compose.yaml": service("volumes: [!!odd '../x:/x']")}, "tag !!odd is not supported"},
		"a text as a mapping":         {map[string]string{"compose.yaml": service("volumes: [!!map '../x:/x']")}, "tag !!map is not supported"},
		"a text as a date":            {map[string]string{"compose.yaml": service("volumes: [!!timestamp '../x:/x']")}, "timestamp"},
		"a port of no protocol":       {map[string]string{"compose.yaml": service("ports: ['1:1/icmp']")}, "icmp"},
		"a missing secret":            {map[string]string{"compose.yaml": service("secrets: [a]") + "secrets: {a: {file: a.txt}}\n"}, "secrets.a: openat a.txt: no such file"},
		"more files than memory":      {manyConfigs(40), "the files of the project have more than 33554432 bytes"},
		"a large config":              {map[string]string{"compose.yaml": service("configs: [a]") + "configs: {a: {file: a.txt}}\n", "a.txt": strings.Repeat("x", 1<<20+1)}, "has more than 1048576 bytes"},
		"a malformed seccomp profile": {map[string]string{"compose.yaml": service("security_opt: ['seccomp:a.json']"), "a.json": "{"}, "is not JSON"},
		"an alias bomb":               {map[string]string{"compose.yaml": bomb + service("")}, "project exceeds"},
		"an alias to itself":          {map[string]string{"compose.yaml": "x-a: &a {b: *a}\n" + service("")}, "contains itself"},
		"deep nesting":                {map[string]string{"compose.yaml": "x-a: " + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "\n" + service("")}, "nested more than 64 levels deep"},
		"very deep nesting":           {map[string]string{"compose.yaml": "x-a: " + strings.Repeat("[", 50000)}, ""},
		"a large file":                {map[string]string{"compose.yaml": service("") + "#" + strings.Repeat("x", 600<<10)}, "has more than 524288 bytes"},
		"a missing variable":          {map[string]string{"compose.yaml": service("user: ${USER_ID:?must be given}")}, "required variable USER_ID is missing a value: must be given"},
		"a malformed variable":        {map[string]string{"compose.yaml": service("user: ${USER ID}")}, "services.web.user"},
		"variables without end":       {map[string]string{"compose.yaml": service("user: " + strings.Repeat("${A:-", 40) + strings.Repeat("}", 40))}, "nested more than 16 levels deep"},
		"variables that multiply": {
			map[string]string{"compose.yaml": service("user: $A0"), ".env": "A9=xxxxxxxxxxxxxxxx\n" + doubling()},
			"variables expand to more than",
		},
		"a missing env_file":          {map[string]string{"compose.yaml": service("env_file: a.env")}, "a.env"},
		"a malformed env_file":        {map[string]string{"compose.yaml": service("env_file: a.env"), "a.env": "A B=1\n"}, "line 1: malformed variable name"},
		"a missing include":           {map[string]string{"compose.yaml": "include: [a.yaml]\n" + service("")}, "a.yaml"},
		"files including themselves":  {map[string]string{"compose.yaml": "include: [a.yaml]\n", "a.yaml": "include: [compose.yaml]\n" + service("")}, "includes itself"},
		"a name defined twice":        {map[string]string{"compose.yaml": "include: [a.yaml]\n" + service(""), "a.yaml": service("user: '1'")}, "is defined twice, once in the included"},
		"a service extending itself":  {map[string]string{"compose.yaml": service("extends: web")}, "Circular reference"},
		"extending a missing service": {map[string]string{"compose.yaml": service("extends: {service: db}")}, `service "db" not found`},
		"an odd extends":              {map[string]string{"compose.yaml": service("extends: {service: 1, file: 2}")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadFiles(t, c.files, nil)
			expect.ErrorWith(t, err, c.want, "load")
			expectBlamed(t, err)
		})
	}
}

// expectBlamed expects an error that the package is to blame for, if there is one.
func expectBlamed(t testing.TB, err error) {
	t.Helper()
	var unsupported *compose.Error
	if err != nil && fault.CodeOf(err) != fault.InvalidPackage && !errors.As(err, &unsupported) {
		t.Errorf("the package is not blamed: %v", err)
	}
}

// Each document is merged over those before it, as a file of its own would be; empty ones, as a comment or a
// separator at the beginning or the end makes them, say nothing.
func TestDocumentsOfOneFileAreMerged(t *testing.T) {
	p := loaded(t, map[string]string{
		"compose.yaml": "# of a tool\n---\n" + service("user: '1'\nlabels: {a: b}\ntty: true") +
			"---\nservices: {web: {image: busybox, tty: !reset null, extends: {file: '$$x/base.yaml', service: base}}}\n---\n---\n",
		"$x/base.yaml": "---\n# of a tool\n---\nservices: {base: {hostname: one, working_dir: /x}}\n---\n" +
			"services: {base: {hostname: two, extends: {file: last.yaml, service: last}}}\n---\n",
		"$x/last.yaml": "services: {last: {labels: {c: d}}}\n---\n",
	}, nil)
	web := p.Services["web"]
	got := []string{web.Image, web.User, web.Hostname, web.WorkingDir, web.Labels["a"], web.Labels["c"]}
	expect.Equal(t, got, []string{"docker.io/library/busybox:latest", "1", "two", "/x", "b", "d"}, "service")
	expect.Equal(t, web.TTY, false, "terminal")
}

// manyConfigs is a project of a service for each of n configs of 1 MiB.
func manyConfigs(n int) map[string]string {
	services, configs := "services:\n", "configs:\n"
	files := map[string]string{}
	for i := range n {
		services += fmt.Sprintf("  s%d: {image: x, configs: [c%d]}\n", i, i)
		configs += fmt.Sprintf("  c%d: {file: f%d}\n", i, i)
		files[fmt.Sprintf("f%d", i)] = strings.Repeat("x", 1<<20)
	}
	files["compose.yaml"] = services + configs
	return files
}

// doubling is a file of variables in which each holds the next one twice.
func doubling() string {
	var b strings.Builder
	for i := 8; i >= 0; i-- {
		for range 3 {
			b.WriteString("A" + string(rune('0'+i)) + "=")
			next := "$A" + string(rune('0'+i+1))
			b.WriteString(strings.Repeat(next, 20) + "\n")
		}
	}
	return b.String()
}
