package compose_test

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/margolite/margolite/runtime/compose"
)

var update = flag.Bool("update", false, "write what the tests get into their golden files")

// loadFiles loads a project of the files given by their names.
func loadFiles(t testing.TB, files map[string]string, env map[string]string) (*compose.Project, error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return compose.Load(t.Context(), compose.Options{
		ProjectName: "plant",
		ComposeFile: filepath.Join(dir, "compose.yaml"),
		Environment: env,
		Strict:      true,
	})
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

func TestLoadRealProjects(t *testing.T) {
	for project, env := range map[string]map[string]string{
		"wordpress": {"DB_PASSWORD": "s3cret", "SITE_PORT": "80"},
		"mosquitto": {"BROKER_USER": "given"},
		"influxdb":  nil,
	} {
		t.Run(project, func(t *testing.T) {
			dir, err := filepath.Abs(filepath.Join("testdata", project))
			if err != nil {
				t.Fatal(err)
			}
			p, err := compose.Load(t.Context(), compose.Options{
				ProjectName: project,
				ComposeFile: filepath.Join(dir, "compose.yaml"),
				Environment: env,
				Strict:      true,
			})
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(map[string]any{
				"order": p.Order(), "images": p.Images(), "volumes": p.Volumes(), "warnings": p.Warnings, "services": p.Services,
			}, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append([]byte(strings.ReplaceAll(string(got), dir, "/package")), '\n')
			golden := filepath.Join("testdata", project+".golden.json")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("services (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLoadRefusesWhatIsNotSupported(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		want []string
	}{
		"an unknown key of a service":      {service("imagine: x"), []string{`service "web": imagine is not supported`}},
		"an unknown key of the file":       {service("") + "nonsense: 1\n", []string{"nonsense is not supported"}},
		"an unknown key three levels deep": {service("deploy: {resources: {limits: {pids: 5}}}"), []string{`service "web": deploy.resources.limits.pids is not supported`}},
		"every problem at once": {
			service("privileged: true\nhealthcheck: {test: x}\nnonsense: 1\nports: [\"8080\"]\nvolumes: [\"/anonymous\"]"),
			[]string{
				`service "web": healthcheck is not supported`,
				`service "web": nonsense is not supported`,
				`service "web": ports publishes 8080 without a port of the device; write "8080:8080"`,
				`service "web": privileged is not supported`,
				`service "web": volumes mounts a volume without a name at /anonymous; give it one, or its data is not found again`,
			},
		},
		"a build":                        {"services: {web: {image: x, build: .}}", []string{`service "web": build is not supported: images are not built on a device; name an image`}},
		"no image":                       {"services: {web: {command: x}}", []string{`service "web": image is missing`}},
		"an image that is none":          {"services: {web: {image: 'Not An Image'}}", []string{`service "web": image "Not An Image" is not an image reference: invalid reference format: repository name (library/Not An Image) must be lowercase`}},
		"profiles":                       {service("profiles: [debug]"), []string{`service "web": profiles is not supported: every service of a project is run`}},
		"a host name":                    {service("hostname: x"), []string{`service "web": hostname is not supported: a service is known by its own name`}},
		"another network":                {service("networks: [front]") + "networks: {front: }\n", []string{"networks.front is not supported: services are connected by the default network only", `service "web": networks.front is not supported: services are connected by the default network only`}},
		"aliases":                        {service("networks: {default: {aliases: [a]}}"), []string{`service "web": networks.default.aliases is not supported`}},
		"options of the network":         {service("") + "networks: {default: {internal: true}}\n", []string{"networks.default.internal is not supported"}},
		"the network of the host":        {service("network_mode: host"), []string{`service "web": network_mode is not supported: services are connected by the default network only`}},
		"a condition of a dependency":    {"services: {a: {image: x, depends_on: {b: {condition: service_healthy}}}, b: {image: x}}", []string{`service "a": depends_on.b.condition "service_healthy" is not supported, only service_started`}},
		"an optional dependency":         {"services: {a: {image: x, depends_on: {b: {condition: service_started, required: false}}}, b: {image: x}}", []string{`service "a": depends_on.b.required false is not supported`}},
		"a restart with a dependency":    {"services: {a: {image: x, depends_on: {b: {condition: service_started, restart: true}}}, b: {image: x}}", []string{`service "a": depends_on.b.restart is not supported`}},
		"a dependency on nothing":        {service("depends_on: [db]"), []string{`service "web": depends_on names "db", which is not a service`}},
		"dependencies in a circle":       {"services: {a: {image: x, depends_on: [b]}, b: {image: x, depends_on: [c]}, c: {image: x, depends_on: [b]}}", []string{`service "b": depends_on goes in a circle: b -> c -> b`}},
		"a range for one port":           {service(`ports: ["8000-8010:80"]`), []string{`service "web": ports publishes 80 as "8000-8010", which is not one port`}},
		"the long form of half a port":   {service(`ports: [{target: 80}]`), []string{`service "web": ports publishes 80 without a port of the device; write "80:80"`}},
		"sctp":                           {service(`ports: ["1:1/sctp"]`), []string{`service "web": ports has protocol "sctp", only tcp and udp are supported`}},
		"a port published twice":         {"services: {a: {image: x, ports: ['80:80']}, b: {image: x, ports: ['127.0.0.1:80:81']}}", []string{`service "b": ports publishes port 80/tcp of the device, which service "a" publishes as well`}},
		"a volume that is not defined":   {service(`volumes: ["nowhere:/x"]`), []string{`service "web": volumes names "nowhere", which is not defined under the top-level volumes`}},
		"an unknown volume option":       {service(`volumes: ["data:/x:exec"]`), []string{`service "web": volumes has option "exec", which is not supported`}},
		"relabelling":                    {service(`volumes: ["./a:/x:z"]`), []string{`service "web": volumes.bind.selinux is not supported: files are not relabelled`}},
		"a part of a volume":             {service(`volumes: [{type: volume, source: data, target: /x, volume: {subpath: a}}]`), []string{`service "web": volumes.volume.subpath is not supported`}},
		"a tmpfs in the long form":       {service(`volumes: [{type: tmpfs, target: /x}]`), []string{`service "web": volumes.type tmpfs is not supported; use tmpfs`}},
		"a target mounted twice":         {service("volumes: [\"data:/x\"]\ntmpfs: /x/"), []string{`service "web": tmpfs mounts /x, where something else is mounted`}},
		"a target that is relative":      {service("tmpfs: x"), []string{`service "web": tmpfs has target "x", which is not an absolute path below /`}},
		"a tmpfs option":                 {service("tmpfs: \"/x:mpol=bind\""), []string{`service "web": tmpfs has option "mpol=bind", which is not supported`}},
		"a bind path out of the package": {service(`volumes: ["../../volumes:/x"]`), []string{`service "web": volumes "../../volumes" leaves the directory of the package`}},
		"the same in the long form":      {service(`volumes: [{type: bind, source: a/../.., target: /x}]`), []string{`service "web": volumes "./a/../.." leaves the directory of the package`}},
		"the same by a variable":         {service(`volumes: ["${X:-../x}:/x"]`), []string{`service "web": volumes "../x" leaves the directory of the package`}},
		"a home directory":               {service(`volumes: ["~/x:/x"]`), []string{`service "web": volumes "~/x" starts in a home directory; a device has none`}},
		"an env_file out of the package": {service("env_file: [../.env]"), []string{`service "web": env_file "../.env" leaves the directory of the package`}},
		"an absolute env_file":           {service("env_file: [{path: /etc/passwd}]"), []string{`service "web": env_file "/etc/passwd" leaves the directory of the package`}},
		"another form of env_file":       {service("env_file: [{path: a, format: raw}]"), []string{`service "web": env_file.format is not supported`}},
		"an include out of the package":  {"include: [../x.yaml]\n" + service(""), []string{`include "../x.yaml" leaves the directory of the package`}},
		"a remote include":               {"include: ['https://example.com/x.yaml']\n" + service(""), []string{`include "https://example.com/x.yaml" is remote; a project cannot fetch parts of itself`}},
		"an extends out of the package":  {service("extends: {file: /etc/x.yaml, service: a}"), []string{`service "web": extends.file "/etc/x.yaml" leaves the directory of the package`}},
		"an external volume":             {service("") + "  b: {external: true}\n", []string{"volumes.b.external is not supported"}},
		"a volume of another driver":     {service("") + "  b: {driver: nfs}\n", []string{`volumes.b.driver "nfs" is not supported, only local`}},
		"options of a volume":            {service("") + "  b: {driver: local, driver_opts: {type: none}}\n", []string{"volumes.b.driver_opts is not supported; for a path of the device use a bind mount"}},
		"two volumes in one":             {service("") + "  b: {name: data}\n", []string{`volumes.data has the name of volume "b"`}},
		"a volume that climbs":           {service("") + "  ..: {}\n", []string{"volumes... has a name that is not letters, digits, _, . and -"}},
		"a service that climbs":          {"services: {..: {image: x}}", []string{`service "..": services has a name that is not letters, digits, _, . and -`}},
		"secrets":                        {service("secrets: [a]") + "secrets: {a: {file: x}}\n", []string{"secrets is not supported; mount files into services", `service "web": secrets is not supported; mount a file`}},
		"a restart policy of a swarm":    {service("deploy: {restart_policy: {condition: any}}"), []string{`service "web": deploy.restart_policy is not supported; use restart`}},
		"an odd restart policy":          {service("restart: on-failure:many"), []string{`service "web": restart "on-failure:many" is not no, always, unless-stopped, on-failure or on-failure:<number>`}},
		"limits that differ":             {service("mem_limit: 64m\ndeploy: {resources: {limits: {memory: 65m}}}"), []string{`service "web": mem_limit differs from deploy.resources.limits.memory`}},
		"a fraction of bytes":            {service("mem_limit: 1e9"), []string{`service "web": mem_limit is 1e+09, which is not a whole number of bytes; write it with a unit: 64m`}},
		"no memory to speak of":          {service("mem_limit: 1k"), []string{`service "web": mem_limit is 1024 bytes, at least 6m are needed`}},
		"a label of the runtime":         {service("labels: {com.docker.compose.project: other}"), []string{`service "web": labels cannot have "com.docker.compose.project": names that begin with com.docker.compose. are reserved`}},
		"two containers of one name":     {"services: {a: {image: x, container_name: one}, b: {image: x, container_name: one}}", []string{`service "b": container_name "one" is that of service "a"`}},
		"more ports than reasonable":     {service(`ports: ["1-65535:1-65535", "1-65535:1-65535"]`), []string{`service "web": ports are too many: one file can publish at most 1024`}},
		"no services":                    {"volumes: {a: }", []string{"services are 0; a project has at least 1 and at most 64"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadFiles(t, map[string]string{"compose.yaml": c.file}, nil)
			if err == nil {
				t.Fatal("loaded")
			}
			var unsupported *compose.Error
			if !errors.As(err, &unsupported) {
				t.Errorf("error is not a *compose.Error: %v", err)
			}
			want := "cannot load Compose file: " + strings.Join(c.want, "\n")
			if diff := cmp.Diff(want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLoadAcceptsWhatAsksForNothing(t *testing.T) {
	_, err := loadService(t, strings.Join([]string{
		"privileged: false", "init: false", "tty: false", "healthcheck: {}", "dns: []", "cap_add: []", "profiles: []",
		"expose: [80]", "networks: [default]", "x-team: {any: [thing]}", "deploy: {x-note: 1}",
	}, "\n"), nil)
	if err != nil {
		t.Error(err)
	}
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
		"two documents":               {map[string]string{"compose.yaml": service("") + "---\n" + service("")}, "more than one YAML document"},
		"a key twice":                 {map[string]string{"compose.yaml": "services: {}\nservices: {}\n"}, "already defined"},
		"a wrong type":                {map[string]string{"compose.yaml": service("command: {a: b}")}, "command"},
		"a wrong type of image":       {map[string]string{"compose.yaml": "services: {web: {image: [x]}}"}, "services.web.image must be a string"},
		"a service of the wrong type": {map[string]string{"compose.yaml": "services: {web: 1}"}, "services.web must be a mapping"},
		"merge tags":                  {map[string]string{"compose.yaml": service("ports: !reset []")}, "tag !reset is not supported"},
		"an alias bomb":               {map[string]string{"compose.yaml": bomb + service("")}, "grows beyond"},
		"an alias to itself":          {map[string]string{"compose.yaml": "x-a: &a {b: *a}\n" + service("")}, "holds itself"},
		"deep nesting":                {map[string]string{"compose.yaml": "x-a: " + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "\n" + service("")}, "nested more than 64 levels deep"},
		"very deep nesting":           {map[string]string{"compose.yaml": "x-a: " + strings.Repeat("[", 50000)}, ""},
		"a large file":                {map[string]string{"compose.yaml": service("") + "#" + strings.Repeat("x", 600<<10)}, "has more than 524288 bytes"},
		"a missing variable":          {map[string]string{"compose.yaml": service("user: ${USER_ID:?must be given}")}, "required variable USER_ID is missing a value: must be given"},
		"a malformed variable":        {map[string]string{"compose.yaml": service("user: ${USER ID}")}, "services.web.user"},
		"variables without end":       {map[string]string{"compose.yaml": service("user: " + strings.Repeat("${A:-", 40) + strings.Repeat("}", 40))}, "nested more than 16 levels deep"},
		"variables that multiply": {
			map[string]string{"compose.yaml": service("user: $A0"), ".env": "A9=xxxxxxxxxxxxxxxx\n" + doubling()},
			"variables add more than",
		},
		"a missing env_file":          {map[string]string{"compose.yaml": service("env_file: a.env")}, "a.env"},
		"a malformed env_file":        {map[string]string{"compose.yaml": service("env_file: a.env"), "a.env": "A B=1\n"}, "line 1: malformed name of a variable"},
		"a missing include":           {map[string]string{"compose.yaml": "include: [a.yaml]\n" + service("")}, "a.yaml"},
		"files including themselves":  {map[string]string{"compose.yaml": "include: [a.yaml]\n", "a.yaml": "include: [compose.yaml]\n" + service("")}, "includes itself"},
		"a name defined twice":        {map[string]string{"compose.yaml": "include: [a.yaml]\n" + service(""), "a.yaml": service("")}, "is defined twice, once in the included"},
		"a service extending itself":  {map[string]string{"compose.yaml": service("extends: web")}, "Circular reference"},
		"extending a missing service": {map[string]string{"compose.yaml": service("extends: {service: db}")}, `service "db" not found`},
		"an odd extends":              {map[string]string{"compose.yaml": service("extends: {service: 1, file: 2}")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadFiles(t, c.files, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want %q in it", err, c.want)
			}
			var unsupported *compose.Error
			if !errors.Is(err, compose.ErrInvalid) && !errors.As(err, &unsupported) {
				t.Errorf("the package is not blamed: %v", err)
			}
		})
	}
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
