package config_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/expect"
)

const packaged = "../../../packaging/config.yaml"

func TestPackagedFileSaysTheDefaults(t *testing.T) {
	c := expect.Value(config.Load(packaged))(t)
	sameConfig(t, c, config.Default())
}

func TestFilesThatSetNothingMeanTheDefaults(t *testing.T) {
	for name, file := range map[string]string{
		"an empty file":            "",
		"comments only":            "# nothing\n",
		"empty documents around":   "# of a tool\n---\nlog: {}\n---\n",
		"an empty mapping":         "{}\n",
		"sections without content": "device:\nwfm:\npoll:\nstate:\nruntime:\npolicy:\nregistries:\nlog:\n",
		"keys without values":      "device: {id: , labels: }\npoll: {interval: , windows: }\nlog: {level: }\n",
		"empty rules":              "policy: {keys: [], windows: [], allow: {mounts: {}, devices: {}, ports: }, hook: {command: []}, deployments: []}\ncontrol: {group: ''}\nstate: {reserve: }\n",
		"empty lists and names":    "poll: {windows: [], downtime: []}\nwfm: {ids: [], ca: '', authorization: {}, clientId: '', reports: ''}\n",
	} {
		t.Run(name, func(t *testing.T) {
			sameConfig(t, parse(t, file), config.Default())
		})
	}
}

func TestAUTH01POL04EveryKeyReachesItsPlace(t *testing.T) {
	c := expect.Value(config.Parse("config.yaml", []byte(`
device:
  id: plant-a/gw-07
  vendor: Northstar
  modelNumber: "332"
  serialNumber: PF45343-AA
  labels:
    example.com/line: "7"
    example.com/rack: 12
    example.com/load: 0.5
    example.com/spare: true
    example.com/zones: [a, b]
    example.com/slots: [1, 2]
  cpus: 1.5
  memory: 768Mi
  storage: 16Gi
  reserved: {cpus: 0.5, memory: 64Mi, storage: 1Gi}
  interfaces: {add: [rs232], hide: [usb, wlan0]}
  peripherals:
    add:
      - {type: camera, manufacturer: Basler, model: acA1920}
      - type: npu
    hide: [microphone]
wfm:
  url: https://wfm.example.com:8443/margo/v1/
  revision: 1.0.0-rc.3
  certificate: /tmp/device.pem
  key: /tmp/device.key
  trustBundle: https://mis.example.com/bundle.json?for=edge
  ids: [spiffe://factory.example/margo/wfm/one, spiffe://factory.example/elsewhere]
  ca: /tmp/anchors.pem
  tls: "1.2"
  identityService:
    discovery: https://mis.example.com/.well-known/margo
    pins: [47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=]
    ca: /tmp/mis.pem
    refresh: 10m
poll:
  interval: 1s
  windows: [Mon-Fri 22:00-04:00, "Sat 00:00-24:00"]
  downtime: [Sun 02:00-03:00 UTC]
provision:
  from: [/data/provision, /media/stick]
state:
  dir: /data/margolite
  run: /tmp/run
  reserve: 1GiB
control:
  group: operators
runtime:
  containerd: /run/containerd/containerd.sock
  namespace: margo.test-1
  settle: 0s
  maxTimeout: 30m
  publish: open
  preload: /data/images
  pulls: 16
  minPullRate: 0
  logs:
    dir: /data/logs
    maxSize: 10m
    maxFile: 3
    total: 64m
reports: {running: false, grace: 5m, interval: 1h, reasons: true}
policy:
  approval: updates
  order: manifest
  windows: [Sun 02:00-05:00]
  rollback: manual
  hook: {command: [/bin/ask, "line 7"], timeout: 5s}
  keys: [/tmp/vendor.asc, /tmp/other.pgp]
  imageKeys: {"*": [/tmp/cosign.pub], "registry.example.com:5000/vendor/a_b": [/tmp/a.pub, /tmp/b.pub]}
  notation: /tmp/notation
  deployments:
    - deployments: [6F1f9d3e-9f4d-4c1c-b9a0-3c1f9f1d2e10]
      labels: {example.com/critical: "yes"}
      approval: all
      windows: [Mon 02:00-05:00 UTC]
      rollback: off
      hook: {command: [/bin/other]}
    - labels: {a: b}
      windows: []
      hook: {}
  allow:
    privileged: true
    namespaces: {pid: true, network: false}
    mounts: {/etc/app: read-only, /var/lib: below}
    devices: {"/dev/ttyUSB*": false, "nvidia.com/gpu=*": false, "c 188:*": false, /dev/mem: true}
    capabilities: {SYS_TIME: false, ALL: true}
    unconfined: {seccomp: true}
    shared: [recipes, plant-net]
    ports: [80, 8000-8999]
    registries: [registry.example.com:5000]
    tags: false
    unsigned: false
    unsignedImages: false
    cpus: 1.5
    memory: 512Mi
    storage: 2TiB
registries:
  127.0.0.1:5000:
    plainHTTP: true
    insecure: true
  registry.example.com:
    ca: /tmp/ca.pem
    credentials: /tmp/auth.json
    mirrors: [mirror.example.com, "[::1]:5000"]
    certificate: /tmp/device.pem
    key: /tmp/device.key
metrics: {listen: "192.0.2.1:9464", otlp: "http://127.0.0.1:4318", interval: 5m}
collector: {http: "http://172.17.0.1:4318", grpc: "https://otel.example:4317", protocol: grpc, certificate: /etc/otel.pem}
log:
  level: debug
  format: json
`)))(t)
	allow := policy.DefaultAllow()
	allow.Privileged, allow.Tags, allow.Unsigned, allow.UnsignedImages = true, false, false, false
	allow.Namespaces["pid"], allow.Namespaces["network"] = true, false
	allow.Mounts["/etc/app"], allow.Mounts["/var/lib"] = policy.MountReadOnly, policy.MountBelow
	for _, device := range []string{"/dev/ttyUSB*", "nvidia.com/gpu=*", "c 188:*"} {
		allow.Devices[device] = false
	}
	allow.Devices["/dev/mem"] = true
	allow.Capabilities["SYS_TIME"], allow.Capabilities["ALL"] = false, true
	allow.Unconfined["seccomp"] = true
	allow.Shared = []string{"recipes", "plant-net"}
	allow.Ports = []policy.PortRange{{First: 80, Last: 80}, {First: 8000, Last: 8999}}
	allow.Registries = []string{"registry.example.com:5000"}
	allow.CPUs, allow.Memory, allow.Storage = 1.5, 512<<20, 2<<40
	sameConfig(t, c, &config.Config{
		Device: agent.Device{
			ID: "plant-a/gw-07", Vendor: "Northstar", ModelNumber: "332", SerialNumber: "PF45343-AA",
			Labels: map[string]any{
				"example.com/line":  "7",
				"example.com/rack":  12,
				"example.com/load":  0.5,
				"example.com/spare": true,
				"example.com/zones": []any{"a", "b"},
				"example.com/slots": []any{1, 2},
			},
			Offer: capability.Offer{
				Cores: 1.5, Memory: 768 << 20, Storage: 16 << 30,
				Reserved:          capability.Reserved{Cores: 0.5, Memory: 64 << 20, Storage: 1 << 30},
				AddedInterfaces:   []capability.Interface{{Kind: capability.RS232}},
				HiddenInterfaces:  []string{"usb", "wlan0"},
				AddedPeripherals:  []capability.Peripheral{{Kind: capability.Camera, Vendor: "Basler", Model: "acA1920"}, {Kind: capability.NPU}},
				HiddenPeripherals: []string{"microphone"},
			},
		},
		WFM: config.WFM{Options: uplink.Options{
			URL:         "https://wfm.example.com:8443/margo/v1/",
			Certificate: "/tmp/device.pem", Key: "/tmp/device.key", TrustBundle: "https://mis.example.com/bundle.json?for=edge",
			IDs: []string{"spiffe://factory.example/margo/wfm/one", "spiffe://factory.example/elsewhere"},
			CA:  "/tmp/anchors.pem", TLS: "1.2",
			Service: uplink.Service{
				Discovery: "https://mis.example.com/.well-known/margo",
				Pins:      []string{"47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="},
				CA:        "/tmp/mis.pem", Refresh: 10 * time.Minute,
			},
			Git: uplink.Git{Branch: "main"},
		}},
		Poll: pace.Rules{
			Interval: time.Second,
			Windows:  windows(t, "Mon-Fri 22:00-04:00", "Sat 00:00-24:00"), Downtime: windows(t, "Sun 02:00-03:00 UTC"),
		},
		Provision: config.Provision{From: []string{"/data/provision", "/media/stick"}},
		State:     config.State{Dir: "/data/margolite", Run: "/tmp/run", Reserve: 1 << 30},
		Control:   config.Control{Group: "operators"},
		Runtime:   config.Runtime{Containerd: "/run/containerd/containerd.sock", Namespace: "margo.test-1", MaxTimeout: 30 * time.Minute, Publish: "open", Preload: "/data/images", Pulls: 16, Logs: config.Logs{Dir: "/data/logs", MaxSize: 10 << 20, MaxFile: 3, Total: 64 << 20}},
		Policy: config.Policy{
			Options: policy.Options{
				Rules: policy.Rules{
					Approval: policy.ApproveUpdates, Windows: windows(t, "Sun 02:00-05:00"), Rollback: policy.RollbackManual,
					Hook: policy.Hook{Command: []string{"/bin/ask", "line 7"}, Timeout: 5 * time.Second},
				},
				Order: policy.OrderManifest,
				Overrides: []policy.Override{
					{
						Deployments: []string{"6F1f9d3e-9f4d-4c1c-b9a0-3c1f9f1d2e10"}, Labels: map[string]string{"example.com/critical": "yes"},
						Approval: policy.ApproveAll, Windows: windows(t, "Mon 02:00-05:00 UTC"), Rollback: policy.RollbackOff,
						Hook: &policy.Hook{Command: []string{"/bin/other"}},
					},
					{Labels: map[string]string{"a": "b"}, Windows: policy.Windows{}, Hook: &policy.Hook{}},
				},
				Allow: allow,
			},
			Keys:      []string{"/tmp/vendor.asc", "/tmp/other.pgp"},
			ImageKeys: map[string][]string{"*": {"/tmp/cosign.pub"}, "registry.example.com:5000/vendor/a_b": {"/tmp/a.pub", "/tmp/b.pub"}},
			Notation:  "/tmp/notation",
		},
		Reports: agent.Reports{Grace: 5 * time.Minute, Interval: time.Hour, Reasons: true},
		Registries: map[string]image.Registry{
			"127.0.0.1:5000":       {PlainHTTP: true, Insecure: true},
			"registry.example.com": {CA: "/tmp/ca.pem", Credentials: "/tmp/auth.json", Mirrors: []string{"mirror.example.com", "[::1]:5000"}, Certificate: "/tmp/device.pem", Key: "/tmp/device.key"},
		},
		Metrics:   config.Metrics{Listen: "192.0.2.1:9464", OTLP: "http://127.0.0.1:4318", Interval: 5 * time.Minute},
		Collector: config.Collector{HTTP: "http://172.17.0.1:4318", GRPC: "https://otel.example:4317", Protocol: "grpc", Certificate: "/etc/otel.pem"},
		Log:       config.Log{Level: slog.LevelDebug, Format: "json"},
	})
}

// Each revision and each way to the WFM uses other keys. What is not used is
// empty, also where the packaged file was taken and a single key changed.
func TestPOL09EachWayToTheWFMHasItsKeys(t *testing.T) {
	packaged := expect.Value(os.ReadFile(packaged))(t)
	d := config.Default().WFM
	for _, test := range []struct {
		name string
		wfm  string // the keys of wfm
		want func(*config.WFM)
	}{
		{"an SVID", "url: https://a.example", func(w *config.WFM) { w.URL = "https://a.example" }},
		{"a trust bundle that is found out", "trustBundle: ''\nidentityService: {discovery: 'https://mis.example/.well-known/margo'}", func(w *config.WFM) {
			w.TrustBundle, w.Service.Discovery = "", "https://mis.example/.well-known/margo"
		}},
		{"a trust bundle that is found out, and nothing said of a file", "identityService: {discovery: 'https://mis.example/.well-known/margo'}", func(w *config.WFM) {
			w.TrustBundle, w.Service.Discovery = "", "https://mis.example/.well-known/margo"
		}},
		{"a trust bundle to begin with", "trustBundle: /first.pem\nidentityService: {discovery: 'https://mis.example/.well-known/margo'}", func(w *config.WFM) {
			w.TrustBundle, w.Service.Discovery = "/first.pem", "https://mis.example/.well-known/margo"
		}},
		{"a signature of rc.2", "revision: 1.0.0-rc.2\nca: /ca.pem\nclientId: edge~01", func(w *config.WFM) {
			w.Revision, w.TrustBundle, w.CA, w.ClientID = margo.RC2, "", "/ca.pem", "edge~01"
		}},
		{"a signature of rc.1", "revision: 1.0.0-rc.1", func(w *config.WFM) { w.Revision, w.TrustBundle = margo.RC1, "" }},
		{"a signature behind a gateway", "revision: 1.0.0-rc.2\nauthorization: {bearer: /token}", func(w *config.WFM) {
			w.Revision, w.TrustBundle, w.Authorization.Bearer = margo.RC2, "", "/token"
		}},
		{"a gateway that terminates TLS", "authorization: {basic: /password}\nca: /ca.pem\ntls: '1.2'", func(w *config.WFM) {
			w.Certificate, w.Key, w.TrustBundle = "", "", ""
			w.Authorization.Basic, w.CA, w.TLS = "/password", "/ca.pem", "1.2"
		}},
		{"a repository alone", "url: git+https://git.example/plants/a.git\ngit: {branch: release/1.x, path: sites/a, token: /token}", func(w *config.WFM) {
			w.URL, w.Git = "git+https://git.example/plants/a.git", uplink.Git{Branch: "release/1.x", Path: "sites/a", Token: "/token"}
			w.Certificate, w.Key, w.TrustBundle = "", "", ""
		}},
		{"a repository and reports", "url: git+https://git.example:8443/a\nreports: https://wfm.example/margo", func(w *config.WFM) {
			w.URL, w.Reports = "git+https://git.example:8443/a", "https://wfm.example/margo"
		}},
		{"a repository and reports that are signed", "url: git+https://git.example/a\nreports: https://wfm.example\nrevision: 1.0.0-rc.2\nclientId: edge-01", func(w *config.WFM) {
			w.URL, w.Reports, w.Revision, w.ClientID, w.TrustBundle = "git+https://git.example/a", "https://wfm.example", margo.RC2, "edge-01", ""
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := config.Default()
			want.WFM = d
			test.want(&want.WFM)
			sameConfig(t, parse(t, "wfm:\n  "+strings.ReplaceAll(test.wfm, "\n", "\n  ")+"\n"), want)
			sameConfig(t, parse(t, string(withKeys(t, packaged, test.wfm))), want)
		})
	}
}

// withKeys puts keys of the section wfm in the place of those of a file.
func withKeys(t *testing.T, file []byte, keys string) []byte {
	t.Helper()
	var whole map[string]map[string]any
	check(t, yaml.Unmarshal(file, &whole))
	var wanted map[string]any
	check(t, yaml.Unmarshal([]byte(keys), &wanted))
	for key, value := range wanted {
		section, ok := whole["wfm"][key].(map[string]any)
		if !ok {
			whole["wfm"][key] = value
			continue
		}
		for name, v := range value.(map[string]any) {
			section[name] = v
		}
	}
	return expect.Value(yaml.Marshal(whole))(t)
}

func TestMistakesNameTheirLineAndKey(t *testing.T) {
	for _, test := range []struct {
		name, file, want string
	}{
		{"an unknown section", "log:\n  level: info\nwmf:\n  url: x\n", "f:3: wmf: unknown key; known here: collector, control, device, log, metrics, policy, poll, provision, registries, reports, runtime, state, wfm"},
		{"an unknown key", "log:\n  # a comment\n  levl: info\n", "f:3: log.levl: unknown key; known here: format, level"},
		{"a key in the wrong case", "poll:\n  Interval: 60s\n", "f:2: poll.Interval: unknown key; known here: downtime, interval, windows"},
		{"a key twice", "poll:\n  interval: 60s\n\n  interval: 30s\n", "f:4: poll.interval: duplicate key; first used in line 2"},
		{"a registry twice", "registries:\n  a:\n  a:\n", "f:3: registries.a: duplicate key; first used in line 2"},
		{"a list in the place of the file", "- a\n", `f:1: expected a section, got a list`},
		{"text in the place of a section", "poll: 60s\n", `f:1: poll: expected a section, got the text "60s"`},
		{"DEV-02 a list in the place of text", "wfm:\n  url: [https://a]\n", `f:2: wfm.url: expected text (in quotes if it looks like something else), got a list`},
		{"a number in the place of text", "device:\n  serialNumber: 0815\n", `f:2: device.serialNumber: expected text (in quotes if it looks like something else), got the number "0815"`},
		{"a date in the place of text", "device:\n  vendor: 2026-01-02\n", `f:2: device.vendor: expected text (in quotes if it looks like something else), got "2026-01-02" of the type "!!timestamp"`},
		{"text in the place of a boolean", "registries:\n  a.example:\n    plainHTTP: yes\n", `f:3: registries[a.example].plainHTTP: expected true or false, got the text "yes"`},
		{"text in the place of a list", "poll:\n  windows: always\n", `f:2: poll.windows: expected a list, got the text "always"`},
		{"an alias", "device:\n  vendor: &v A\n  modelNumber: *v\n", "f:3: device.modelNumber: expected text (in quotes if it looks like something else), got an alias; aliases are not supported"},
		{"a merged section", "log: &l {level: info}\npoll:\n  <<: *l\n", "f:3: poll[<<]: unknown key; known here: downtime, interval, windows"},
		{"a key that is a list", "? [a]\n: b\n", "f:1: expected a key, got a list"},
		{"a second document", "log: {}\n---\nlog: {}\n", "f:2: unexpected second document"},
		{"broken YAML", "log:\n  level: info\n format: text\n", "f:3: invalid YAML: did not find expected key"},
		{"a tab", "log:\n\tlevel: info\n", "f:2: invalid YAML: found character that cannot start any token"},

		{"a duration without unit", "poll:\n  interval: 60\n", `f:2: poll.interval: expected a duration with its unit, such as 60s or 5m, got the number "60"`},
		{"a window without hours", "poll:\n  windows:\n    - Mon-Fri 22:00-04:00\n    - Sun\n", `f:4: poll.windows[1]: cannot use window "Sun": hours such as 22:00-04:00 are missing`},
		{"too many windows", "poll:\n  downtime: [" + strings.Repeat("00:00-01:00, ", 65) + "]\n", "f:2: poll.downtime: expected at most 64 values, got 65"},
		{"an interval of a year", "poll:\n  interval: 8760h\n", "f:2: poll.interval: expected at most 744h0m0s, got 8760h0m0s"},
		{"an interval below a second", "poll:\n  interval: 999ms\n", "f:2: poll.interval: expected at least 1s, got 999ms"},
		{"no downloads at all", "runtime:\n  pulls: 0\n", `f:2: runtime.pulls: expected a number from 1 to 16, got the number "0"`},
		{"downloads in words", "runtime:\n  pulls: many\n", `f:2: runtime.pulls: expected a number, got the text "many"`},
		{"a log without a unit of ours", "runtime:\n  logs: {maxSize: 10 MiB}\n", `f:2: runtime.logs.maxSize: expected a number of bytes, such as 500k or 10m, got the text "10 MiB"`},
		{"a log that is too small", "runtime:\n  logs: {maxSize: 100}\n", "f:2: runtime.logs.maxSize: expected at least 4096 bytes, got 100"},
		{"a log that is too large", "runtime:\n  logs: {maxSize: 99999999g}\n", `f:2: runtime.logs.maxSize: expected a number of bytes, such as 500k or 10m, got the text "99999999g"`},
		{"too many files", "runtime:\n  logs: {maxFile: 101}\n", `f:2: runtime.logs.maxFile: expected a number from 1 to 100, got the number "101"`},
		{"no time at all to install", "runtime:\n  maxTimeout: 0s\n", "f:2: runtime.maxTimeout: expected at least 1s, got 0s"},
		{"a port alone", "metrics:\n  listen: \"9464\"\n", `f:2: metrics.listen: expected :port, or address:port such as 192.0.2.1:9464, got "9464"`},
		{"OBS-12 a collector elsewhere without TLS", "metrics:\n  otlp: http://otel.example:4318\n", "f:2: metrics.otlp: expected a URL that begins with https://, because the collector is not on this device"},
		{"a collector without a scheme", "collector:\n  http: otel:4318\n", "f:2: collector.http: expected a URL that begins with http:// or https://"},
		{"metrics all the time", "metrics:\n  interval: 1s\n", "f:2: metrics.interval: expected at least 10s, got 1s"},
		{"an id that changes a path", "device:\n  id: gw/../x\n", "f:2: device.id: expected names of letters, digits and . _ ~ - with / between them"},
		{"a vendor on two lines", "device:\n  vendor: \"a\\nb\"\n", "f:2: device.vendor: expected text without control characters"},
		{"a label without value", "device:\n  labels:\n    a:\n", "f:3: device.labels.a: expected text, a number, true or false, or a list of texts or of numbers"},
		{"a label that is a section", "device:\n  labels:\n    a: {b: c}\n", "f:3: device.labels.a: expected text, a number, true or false, or a list of texts or of numbers"},
		{"CAP-09 a label with a mixed list", "device:\n  labels:\n    a: [b, 1]\n", "f:3: device.labels.a: expected text, a number, true or false, or a list of texts or of numbers"},
		{"a label that is no number", "device:\n  labels:\n    a: .nan\n", "f:3: device.labels.a: expected text, a number, true or false, or a list of texts or of numbers"},
		{"CAP-14 an interface of another kind", "device:\n  interfaces: {add: [profibus]}\n", "f:2: device.interfaces.add[0]: expected ethernet or wifi or cellular or bluetooth or usb or canbus or rs232, got \"profibus\""},
		{"CAP-14 a peripheral of another kind", "device:\n  peripherals: {add: [{type: printer}]}\n", "f:2: device.peripherals.add[0].type: expected gpu or npu or display or camera or microphone or speaker, got \"printer\""},
		{"a peripheral without its type", "device:\n  peripherals: {add: [{model: A1}]}\n", "f:2: device.peripherals.add[0]: set the type of the peripheral"},
		{"CAP-11 memory that is negative", "device:\n  memory: -1\n", "f:2: device.memory: expected a number of bytes, such as 500k or 10m, got the number \"-1\""},
		{"a relative path", "state:\n  dir: state\n", `f:2: state.dir: expected an absolute path, got "state"`},
		{"an empty path", "wfm:\n  key: \"\"\n", `f:2: wfm.key: expected an absolute path, got ""`},
		{"a containerd that is neither", "runtime:\n  containerd: system\n", `f:2: runtime.containerd: expected embedded or the absolute path of a socket, got "system"`},
		{"a namespace with a slash", "runtime:\n  namespace: a/b\n", "f:2: runtime.namespace: expected at most 76 letters and digits, with single . _ - between them"},
		{"a registry with a scheme", "registries:\n  https://a.example: {}\n", `f:2: registries[https://a.example]: expected a host, or host:port, got "https://a.example"`},
		{"a registry with a port that is none", "registries:\n  a.example:70000: {}\n", `f:2: registries[a.example:70000]: expected a host, or host:port, got "a.example:70000"`},
		{"a registry's certificate without its key", "registries:\n  a:\n    certificate: /tmp/a.pem\n", "f:3: registries.a: set certificate and key together"},
		{"a mirror with a path", "registries:\n  a:\n    mirrors:\n      - b\n      - c/d\n", `f:5: registries.a.mirrors[1]: expected a host, or host:port, got "c/d"`},
		{"a mirror that is missing", "registries:\n  a:\n    mirrors:\n      -\n", "f:4: registries.a.mirrors[0]: expected text, got nothing"},

		{"AUTH-01 a URL without TLS", "wfm:\n  url: http://wfm.example\n", "f:2: wfm.url: expected a URL that begins with https:// or git+https://"},
		{"a URL without host", "wfm:\n  url: https:///margo\n", "f:2: wfm.url: expected a host after https://, with a port if it is not 443"},
		{"a URL with a password", "wfm:\n  url: https://me:secret@wfm.example\n", "f:2: wfm.url: expected a URL without user and password; put the credentials of a gateway into the file that wfm.authorization names"},
		{"a URL with a query", "wfm:\n  url: https://wfm.example/?a=b\n", "f:2: wfm.url: expected a URL without a query"},
		{"a URL with a fragment", "wfm:\n  url: https://wfm.example/#a\n", "f:2: wfm.url: expected a URL without a fragment"},
		{"a URL that is none", "wfm:\n  url: \"https://wfm.example:port\"\n", "f:2: wfm.url: expected a URL such as https://wfm.example.com"},

		{"a repository without path", "wfm:\n  url: git+https://git.example/\n", "f:2: wfm.url: expected the path of a repository after the host"},
		{"a repository with its token", "wfm:\n  url: git+https://me:secret@git.example/a\n", "f:2: wfm.url: expected a URL without user and password; put the token into the file that wfm.git.token names"},
		{"a revision that does not exist", "wfm:\n  revision: 2.0.0\n", `f:2: wfm.revision: expected 1.0.0-rc.3 or 1.0.0-rc.2 or 1.0.0-rc.1, got "2.0.0"`},
		{"a trust bundle without TLS", "wfm:\n  trustBundle: http://mis.example/bundle.json\n", "f:2: wfm.trustBundle: expected the absolute path of a file, or a URL that begins with https://"},
		{"a relative trust bundle", "wfm:\n  trustBundle: bundle.json\n", `f:2: wfm.trustBundle: expected an absolute path, got "bundle.json"`},
		{"an id that is a URL", "wfm:\n  ids: [https://wfm.example]\n", `f:2: wfm.ids[0]: expected a SPIFFE ID such as spiffe://factory.example/margo/wfm/one, got "https://wfm.example"`},
		{"an id of a trust domain", "wfm:\n  ids:\n    - spiffe://a.example/b\n    - spiffe://a.example\n", `f:4: wfm.ids[1]: expected a SPIFFE ID such as spiffe://factory.example/margo/wfm/one, got "spiffe://a.example"`},
		{"two ways of authorization", "wfm:\n  authorization:\n    basic: /a\n    bearer: /b\n", "f:2: wfm.authorization: expected basic or bearer, got both"},
		{"a token in the place of its file", "wfm:\n  authorization: {bearer: eyJhbGciOi}\n", `f:2: wfm.authorization.bearer: expected the absolute path of a file with the secret`},
		{"a client id that changes a path", "wfm:\n  revision: 1.0.0-rc.2\n  clientId: ..\n", "f:3: wfm.clientId: expected letters, digits and . _ ~ -"},
		{"a pin that is too short", "wfm:\n  identityService: {pins: [aGVsbG8=]}\n", "f:2: wfm.identityService.pins[0]: expected the SHA-256 of a public key in base64, 44 characters that end with ="},
		{"a refresh without pause", "wfm:\n  identityService: {refresh: 1s}\n", "f:2: wfm.identityService.refresh: expected at least 5m0s, got 1s"},
		{"a branch that is an option", "wfm:\n  git: {branch: --upload-pack=x}\n", "f:2: wfm.git.branch: expected the name of a branch: letters, digits and . _ - with / between names"},
		{"a path out of the repository", "wfm:\n  git: {path: ../other}\n", `f:2: wfm.git.path: expected a path within the repository, such as sites/plant-a, got "../other"`},
		{"reports into a repository", "wfm:\n  reports: git+https://git.example/a\n", "f:2: wfm.reports: expected a URL that begins with https://"},

		{"git keys without git", "wfm:\n  url: https://a.example\n  git:\n    path: a\n    token: /b\n  reports: https://b.example\n", "f:4: wfm.git.path: applies only if wfm.url begins with git+https://\nf:5: wfm.git.token: applies only if wfm.url begins with git+https://\nf:6: wfm.reports: applies only if wfm.url begins with git+https://"},
		{"a trust bundle for rc.2", "wfm:\n  trustBundle: https://mis.example/b\n  revision: 1.0.0-rc.2\n", "f:2: wfm.trustBundle: applies only to revision 1.0.0-rc.3, not to 1.0.0-rc.2"},
		{"an identity service for rc.1", "wfm:\n  ids: [spiffe://a.example/b]\n  revision: 1.0.0-rc.1\n  identityService: {ca: /a}\n", "f:2: wfm.ids: applies only to revision 1.0.0-rc.3, not to 1.0.0-rc.1\nf:4: wfm.identityService.ca: applies only to revision 1.0.0-rc.3, not to 1.0.0-rc.1"},
		{"TLS 1.2 for rc.2", "wfm:\n  revision: 1.0.0-rc.2\n  tls: '1.2'\n", "f:3: wfm.tls: must be 1.3 for revision 1.0.0-rc.2"},
		{"a client id for rc.3", "wfm:\n  clientId: a\n", "f:2: wfm.clientId: applies only to revisions 1.0.0-rc.2 and 1.0.0-rc.1, not to 1.0.0-rc.3"},
		{"a certificate for a gateway", "wfm:\n  certificate: /a\n  authorization: {basic: /b}\n", "f:2: wfm.certificate: conflicts with wfm.authorization: the gateway terminates TLS, so the WFM never sees a certificate of the device"},
		{"pins for a file", "wfm:\n  identityService:\n    pins: [47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=]\n", "f:3: wfm.identityService.pins: applies only if the trust bundle is fetched: set wfm.identityService.discovery, or a URL in wfm.trustBundle"},
		{"no trust bundle at all", "wfm:\n  trustBundle: ''\n", "f:2: wfm.trustBundle: required: a file, or the https URL where an identity service publishes it"},
		{"an identity for a repository alone", "wfm:\n  url: git+https://git.example/a\n  key: /a\n", "f:3: wfm.key: does not apply to a Git repository; wfm.reports names an API for reports"},

		{"a rollback that is read as a boolean", "policy:\n  rollback: on\n", `f:2: policy.rollback: expected auto or manual or off, got "on"`},
		{"a hook without its directory", "policy:\n  hook:\n    command:\n      - ask\n", `f:4: policy.hook.command: command "ask" is not the absolute path of a program`},
		{"a hook with a word of two lines", "policy:\n  hook: {command: [/bin/ask, \"a\\0b\"]}\n", "f:2: policy.hook.command[1]: expected at most 4096 bytes without control characters"},
		{"a hook without time", "policy:\n  hook:\n    timeout: 0s\n", "f:3: policy.hook.timeout: expected at least 1s, got 0s"},
		{"other rules for nobody", "policy:\n  deployments:\n    - approval: all\n", "f:3: policy.deployments[0]: set deployments or labels, which select the deployments"},
		{"no other rules", "policy:\n  deployments:\n    - labels: {a: b}\n", "f:3: policy.deployments[0]: set approval, windows, rollback or hook"},
		{"other rules that are missing", "policy:\n  deployments:\n    -\n", "f:3: policy.deployments[0]: expected a section, got nothing"},
		{"other rules for an id that is none", "policy:\n  deployments:\n    - {deployments: [web], approval: all}\n", `f:3: policy.deployments[0].deployments[0]: expected the id of a deployment, a UUID, got "web"`},
		{"other windows that cannot be read", "policy:\n  deployments:\n    - labels: {a: b}\n      windows:\n        - 22:00-04:00\n        - 22:00-25:00\n", `f:6: policy.deployments[0].windows[1]: cannot use window "22:00-25:00": time "25:00" is out of range (00:00-24:00)`},
		{"too many other rules", "policy:\n  deployments: [" + strings.Repeat("{}, ", 65) + "]\n", "f:2: policy.deployments: expected at most 64 sections, got 65"},
		{"a namespace that does not exist", "policy:\n  allow:\n    namespaces: {user: true}\n", `f:3: policy.allow.namespaces.user: expected one of network, pid, ipc, uts, cgroup, got "user"`},
		{"a capability that does not exist", "policy:\n  allow:\n    capabilities:\n      SYS_ADMN: false\n", `f:4: policy.allow.capabilities[SYS_ADMN]: expected a capability such as NET_ADMIN, or ALL or *, got "SYS_ADMN"`},
		{"an access that does not exist", "policy:\n  allow:\n    mounts:\n      /opt: rw\n", `f:4: policy.allow.mounts[/opt]: expected one of never, read-only, below, always, got "rw"`},
		{"a mount of no path", "policy:\n  allow:\n    mounts: {opt/app: never}\n", `f:3: policy.allow.mounts[opt/app]: expected an absolute path, without //, .. or a trailing /`},
		{"a device without its directory", "policy:\n  allow:\n    devices: {ttyS0: false}\n", `f:3: policy.allow.devices[ttyS0]: expected a path, a CDI name such as vendor.com/class=name, or a device rule such as "c 188:*", got "ttyS0"`},
		{"a pattern that is none", "policy:\n  allow:\n    devices: {'/dev/[': false}\n", `f:3: policy.allow.devices[/dev/[]: "/dev/[" is not a pattern such as /dev/ttyS*`},
		{"a path in the place of a name", "policy:\n  allow:\n    shared: [a/b]\n", `f:3: policy.allow.shared[0]: expected "*", or the name of a volume, network or container, got "a/b"`},
		{"a port that does not exist", "policy:\n  allow:\n    ports:\n      - 80\n      - 70000\n", `f:5: policy.allow.ports[1]: expected a port from 1 to 65535, or a range such as 8000-8999, got the number "70000"`},
		{"ports backwards", "policy:\n  allow:\n    ports: [9000-8000]\n", `f:3: policy.allow.ports[0]: expected a port from 1 to 65535, or a range such as 8000-8999, got the text "9000-8000"`},
		{"cores in words", "policy:\n  allow:\n    cpus: two\n", `f:3: policy.allow.cpus: expected a number of cores, such as 2 or 0.5, got the text "two"`},
		{"less than no cores", "policy:\n  allow:\n    cpus: -1\n", `f:3: policy.allow.cpus: expected a number of cores, such as 2 or 0.5, got the number "-1"`},
		{"memory in cores", "policy:\n  allow:\n    memory: 0.5\n", `f:3: policy.allow.memory: expected a number of bytes, such as 500k or 10m, got the number "0.5"`},
		{"a group that is a number", "control:\n  group: '1000'\n", `f:2: control.group: expected the name of a group, got "1000"`},
		{"keys of images by a tag", "policy:\n  imageKeys:\n    docker.io/a:1: [/a.pub]\n", `f:3: policy.imageKeys[docker.io/a:1]: expected "*", or a registry with a path in it or without, such as registry.example.com/vendor, got "docker.io/a:1"`},
		{"keys of images without their registry", "policy: {imageKeys: {library/nginx: [/a.pub]}}\n", `f:1: policy.imageKeys[library/nginx]: expected "*", or a registry with a path in it or without, such as registry.example.com/vendor, got "library/nginx"`},
		{"keys of images that are no files", "policy:\n  imageKeys: {'*': [a.pub]}\n", `f:2: policy.imageKeys[*][0]: expected an absolute path, got "a.pub"`},
		{"no keys of images", "policy:\n  imageKeys:\n    '*': []\n  allow: {unsignedImages: false}\n", "f:3: policy.imageKeys[*]: expected at least one file of public keys"},
		{"keys of images that need none", "policy:\n  imageKeys: {'*': [/a.pub]}\n", "f:2: policy.imageKeys: needs policy.allow.unsignedImages: false or policy.allow.unsigned: false; otherwise neither images nor packages have to be signed"},
		{"a trust policy that nothing needs", "policy:\n  notation: /etc/notation\n", "f:2: policy.notation: needs policy.allow.unsigned: false; otherwise no package has to be signed"},
		{"signed images without a key", "policy:\n  allow: {unsignedImages: false}\n", "f:2: policy.allow.unsignedImages: needs policy.imageKeys: without a key no image would be allowed"},
		{"keys of packages that are no files", "policy:\n  keys: [\n    /a.asc,\n    \"https://x/key.asc\"]\n", "f:4: policy.keys[1]: expected an absolute path, got \"https://x/key.asc\""},

		{
			"several at once, in their order", "poll:\n  interval: 1\nwfm:\n  url: http://a\n  ulr: b\n",
			"f:2: poll.interval: expected a duration with its unit, such as 60s or 5m, got the number \"1\"\n" +
				"f:4: wfm.url: expected a URL that begins with https:// or git+https://\n" +
				"f:5: wfm.ulr: unknown key; known here: authorization, ca, certificate, clientId, git, identityService, ids, key, reports, revision, strict, tls, trustBundle, url",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := expect.ErrorOf(config.Parse("f", []byte(test.file)))
			expect.Equal(t, fmt.Sprint(err), test.want, "mistakes")
		})
	}
}

// An upgraded agent must still start with a configuration that it accepted before.
func TestRetiredKeysAreTakenWithAWarning(t *testing.T) {
	c := expect.Value(config.Parse("f", []byte("wfm:\n  limits: {manifest: 2MiB, names: none}\n  signature:\n    keyId: edge-01\n  tls: '1.2'\n")))(t)
	const why = "has no effect; the next release will reject it"
	expect.Equal(t, fmt.Sprint(errors.Join(c.Warnings()...)), "f:2: wfm.limits: "+why+"\nf:3: wfm.signature: "+why, "warnings")
	expect.Equal(t, c.WFM.TLS, "1.2", "the other keys are lost: %+v", c.WFM)
}

func TestReportsAboutAFileAreBounded(t *testing.T) {
	var file strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&file, "key%d: %s\n", i, strings.Repeat("x", 100))
	}
	_, err := config.Parse("f", []byte(file.String()))
	if err == nil || len(err.Error()) > 20<<10 || !strings.HasSuffix(err.Error(), "f:51: too many errors; the rest is not shown") {
		t.Errorf("got %d bytes: %.500v", len(fmt.Sprint(err)), err)
	}
	_, err = config.Parse("f", []byte(strings.Repeat("#", 300<<10)))
	expect.ErrorWith(t, err, "f: the file has more than 262144 bytes", "a huge file")
}

func FuzzParse(f *testing.F) {
	seed := expect.Value(os.ReadFile(packaged))(f)
	f.Add(seed)
	for _, s := range []string{
		"", "---", "# c\n---\n...", "&a [*a]", "{{{{", "a: b: c", "? ", "log: !!binary aGk=", "\xff\xfe", "%YAML 1.1\n---\n",
		"device: {labels: {a: [1, b], c: .inf, d: 0x1F, e: 2026-01-01}}",
		"registries: {'a:5000': {plainHTTP: true, mirrors: [b, ~]}}",
		"wfm: {revision: 1.0.0-rc.2, clientId: a, signature: {components: ['@method', '@target-uri', content-digest], keyId: b}, tls: '1.3'}",
		"wfm: {url: 'git+https://git.example/a', git: {branch: b, path: c, token: /d}, reports: 'https://wfm.example', ids: ['spiffe://a/b']}",
		"wfm: {authorization: {basic: /a, bearer: /b}, ca: /c, trustBundle: '', identityService: {discovery: 'https://a', pins: [x], ca: /c, refresh: 1h}}",
		"wfm: {limits: {manifest: 1MiB, document: 5, bundle: 1g, expanded: 1KiB, entries: 1, ratio: 10, names: 64, depth: 1}}",
		"poll: {windows: [Mon-Fri 22:00-04:00 Europe/Berlin], downtime: ['Sun 00:00-24:00']}",
		"policy: {approval: all, windows: [Sun 01:00-02:00], rollback: manual, hook: {command: [/a, b], timeout: 5s}}",
		"policy: {deployments: [{labels: {a: b}, windows: [], hook: {}}, {deployments: [6f1f9d3e-9f4d-4c1c-b9a0-3c1f9f1d2e10], approval: all}, ~]}",
		"policy: {allow: {mounts: {/a: below, /: always}, devices: {'c 1:*': true, '/dev/[a-z]*': false}, capabilities: {'*': false}, ports: [1, 2-3], registries: [], cpus: 0.5, memory: 1Ti}}",
		"policy: {imageKeys: {'*': [/a], 'r.example:5000/a/b': [/b, /c], localhost: []}, allow: {unsignedImages: false}}",
		"<<: {a: b}", "poll: {interval: 9999999999h, windows: [x]}", "wfm: {url: 'https://[::1%25eth0]:8443/x'}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse("f", data)
		expect.Require(t, (c == nil) != (err == nil), "got %v and %v", c, err)
		if err != nil {
			return
		}
		expect.True(t, c.Poll.Interval >= time.Second && c.Runtime.Settle >= 0 && filepath.IsAbs(c.State.Dir), "accepted %+v", c)
		w := c.WFM
		if w.Authorization.Basic != "" && w.Authorization.Bearer != "" || w.TLS != "1.3" && w.TLS != "1.2" || (w.Certificate == "") != (w.Key == "") ||
			w.Revision != margo.RC3 && (w.TrustBundle != "" || len(w.IDs) > 0) {
			t.Errorf("accepted %+v", w)
		}
		policy.New(c.Policy.Options) // does not panic
		if changed := c.Changed(c); len(changed.Parts)+len(changed.Restart) > 0 {
			t.Errorf("differs from itself in %+v", changed)
		}
	})
}

// sameWindow compares windows with their time zones.
var sameWindow = cmp.Comparer(func(a, b policy.Window) bool { return reflect.DeepEqual(a, b) })

func windows(t *testing.T, texts ...string) policy.Windows {
	t.Helper()
	var all policy.Windows
	for _, text := range texts {
		all = append(all, expect.Value(policy.ParseWindow(text, time.Local))(t))
	}
	return all
}

func sameConfig(t *testing.T, got, want *config.Config) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(config.Config{}), cmpopts.EquateEmpty(), sameWindow); diff != "" {
		t.Errorf("the configuration differs (-want +got):\n%s", diff)
	}
}
