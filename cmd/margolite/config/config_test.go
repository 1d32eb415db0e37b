package config_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/margolite/margolite/cmd/margolite/config"
)

const packaged = "../../../packaging/config.yaml"

func TestPackagedFileSaysTheDefaults(t *testing.T) {
	c, err := config.Load(packaged)
	if err != nil {
		t.Fatal(err)
	}
	sameConfig(t, c, config.Default())
}

func TestFilesThatSetNothingMeanTheDefaults(t *testing.T) {
	for name, file := range map[string]string{
		"an empty file":              "",
		"white space":                "\n\n  \n",
		"comments only":              "# nothing\n",
		"an empty document":          "---\n",
		"null":                       "~\n",
		"an empty mapping":           "{}\n",
		"sections without content":   "device:\nwfm:\npoll:\nstate:\nruntime:\npolicy:\nregistries:\nlog:\n",
		"keys without values":        "device: {id: , labels: }\npoll: {interval: , windows: }\nlog: {level: }\n",
		"empty lists for later keys": "poll: {windows: [], downtime: []}\npolicy: {windows: [], allow: {}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := config.Parse("config.yaml", []byte(file))
			if err != nil {
				t.Fatal(err)
			}
			sameConfig(t, c, config.Default())
		})
	}
}

func TestEveryKeyReachesItsPlace(t *testing.T) {
	c, err := config.Parse("config.yaml", []byte(`
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
wfm:
  url: https://wfm.example.com:8443/margo/v1/
  revision: 1.0.0-rc.3
  certificate: /tmp/device.pem
  key: /tmp/device.key
  trustBundle: /tmp/bundle.json
poll:
  interval: 1s
state:
  dir: /data/margolite
  run: /tmp/run
runtime:
  containerd: /run/containerd/containerd.sock
  namespace: margo.test-1
  settle: 0s
  publish: open
  preload: /data/images
  pulls: 16
  logs:
    dir: /data/logs
    maxSize: 10m
    maxFile: 3
policy:
  approval: none
registries:
  127.0.0.1:5000:
    plainHTTP: true
    insecure: true
  registry.example.com:
    ca: /tmp/ca.pem
    credentials: /tmp/auth.json
    mirrors: [mirror.example.com, "[::1]:5000"]
log:
  level: debug
  format: json
`))
	if err != nil {
		t.Fatal(err)
	}
	sameConfig(t, c, &config.Config{
		Device: config.Device{
			ID: "plant-a/gw-07", Vendor: "Northstar", ModelNumber: "332", SerialNumber: "PF45343-AA",
			Labels: map[string]any{
				"example.com/line":  "7",
				"example.com/rack":  12,
				"example.com/load":  0.5,
				"example.com/spare": true,
				"example.com/zones": []any{"a", "b"},
				"example.com/slots": []any{1, 2},
			},
		},
		WFM: config.WFM{
			URL: "https://wfm.example.com:8443/margo/v1/", Revision: "1.0.0-rc.3",
			Certificate: "/tmp/device.pem", Key: "/tmp/device.key", TrustBundle: "/tmp/bundle.json",
		},
		Poll:    config.Poll{Interval: time.Second},
		State:   config.State{Dir: "/data/margolite", Run: "/tmp/run"},
		Runtime: config.Runtime{Containerd: "/run/containerd/containerd.sock", Namespace: "margo.test-1", Publish: "open", Preload: "/data/images", Pulls: 16, Logs: config.Logs{Dir: "/data/logs", MaxSize: 10 << 20, MaxFile: 3}},
		Policy:  config.Policy{Approval: "none"},
		Registries: map[string]config.Registry{
			"127.0.0.1:5000":       {PlainHTTP: true, Insecure: true},
			"registry.example.com": {CA: "/tmp/ca.pem", Credentials: "/tmp/auth.json", Mirrors: []string{"mirror.example.com", "[::1]:5000"}},
		},
		Log: config.Log{Level: slog.LevelDebug, Format: "json"},
	})
}

func TestMistakesNameTheirLineAndKey(t *testing.T) {
	for _, test := range []struct {
		name, file, want string
	}{
		{"an unknown section", "log:\n  level: info\nwmf:\n  url: x\n", "f:3: wmf: unknown key; known here: device, log, policy, poll, registries, runtime, state, wfm"},
		{"an unknown key", "log:\n  # a comment\n  levl: info\n", "f:3: log.levl: unknown key; known here: format, level"},
		{"a key in the wrong case", "poll:\n  Interval: 60s\n", "f:2: poll.Interval: unknown key; known here: downtime, interval, windows"},
		{"a key twice", "poll:\n  interval: 60s\n\n  interval: 30s\n", "f:4: poll.interval: given twice, the first time in line 2"},
		{"a section twice", "log: {}\nlog: {}\n", "f:2: log: given twice, the first time in line 1"},
		{"a registry twice", "registries:\n  a:\n  a:\n", "f:3: registries.a: given twice, the first time in line 2"},
		{"a list in the place of the file", "- a\n", `f:1: expected a section, got a list`},
		{"text in the place of the file", "margolite\n", `f:1: expected a section, got the text "margolite"`},
		{"text in the place of a section", "poll: 60s\n", `f:1: poll: expected a section, got the text "60s"`},
		{"a list in the place of text", "wfm:\n  url: [https://a]\n", `f:2: wfm.url: expected text (in quotes where it could be something else), got a list`},
		{"a number in the place of text", "device:\n  serialNumber: 0815\n", `f:2: device.serialNumber: expected text (in quotes where it could be something else), got the number "0815"`},
		{"a boolean in the place of text", "device:\n  vendor: true\n", `f:2: device.vendor: expected text (in quotes where it could be something else), got "true"`},
		{"a date in the place of text", "device:\n  vendor: 2026-01-02\n", `f:2: device.vendor: expected text (in quotes where it could be something else), got "2026-01-02" of the type "!!timestamp"`},
		{"text in the place of a boolean", "registries:\n  a.example:\n    plainHTTP: yes\n", `f:3: registries[a.example].plainHTTP: expected true or false, got the text "yes"`},
		{"text in the place of a list", "poll:\n  windows: always\n", `f:2: poll.windows: expected a list, got the text "always"`},
		{"an alias", "device:\n  vendor: &v A\n  modelNumber: *v\n", "f:3: device.modelNumber: expected text (in quotes where it could be something else), got an alias; aliases are not supported"},
		{"a merged section", "log: &l {level: info}\npoll:\n  <<: *l\n", "f:3: poll[<<]: unknown key; known here: downtime, interval, windows"},
		{"a key that is a list", "? [a]\n: b\n", "f:1: expected a key, got a list"},
		{"a second document", "log: {}\n---\nlog: {}\n", "f:2: a second document starts here, one is expected"},
		{"broken YAML", "log:\n  level: info\n format: text\n", "f:3: this is not YAML: did not find expected key"},
		{"a tab", "log:\n\tlevel: info\n", "f:2: this is not YAML: found character that cannot start any token"},

		{"a duration without unit", "poll:\n  interval: 60\n", `f:2: poll.interval: expected a duration with its unit, such as 60s or 5m, got the number "60"`},
		{"a duration that is none", "poll:\n  interval: soon\n", `f:2: poll.interval: expected a duration with its unit, such as 60s or 5m, got the text "soon"`},
		{"an interval below a second", "poll:\n  interval: 999ms\n", "f:2: poll.interval: expected at least 1s, got 999ms"},
		{"no downloads at all", "runtime:\n  pulls: 0\n", `f:2: runtime.pulls: expected a number from 1 to 16, got the number "0"`},
		{"downloads in words", "runtime:\n  pulls: many\n", `f:2: runtime.pulls: expected a number, got the text "many"`},
		{"a log without a unit of ours", "runtime:\n  logs: {maxSize: 10 MiB}\n", `f:2: runtime.logs.maxSize: expected a number of bytes, such as 500k or 10m, got the text "10 MiB"`},
		{"a log that is too small", "runtime:\n  logs: {maxSize: 100}\n", "f:2: runtime.logs.maxSize: expected at least 4096 bytes, got 100"},
		{"a log that is too large", "runtime:\n  logs: {maxSize: 99999999g}\n", `f:2: runtime.logs.maxSize: expected a number of bytes, such as 500k or 10m, got the text "99999999g"`},
		{"too many files", "runtime:\n  logs: {maxFile: 101}\n", `f:2: runtime.logs.maxFile: expected a number from 1 to 100, got the number "101"`},
		{"text in the place of a number", "runtime:\n  logs: {maxFile: two}\n", `f:2: runtime.logs.maxFile: expected a number, got the text "two"`},
		{"a negative time to settle", "runtime:\n  settle: -1s\n", "f:2: runtime.settle: expected at least 0s, got -1s"},
		{"a level that does not exist", "log:\n  level: loud\n", `f:2: log.level: expected debug or info or warn or error, got "loud"`},
		{"a format that does not exist", "log:\n  format: xml\n", `f:2: log.format: expected text or json, got "xml"`},
		{"an id that changes a path", "device:\n  id: gw/../x\n", "f:2: device.id: expected names of letters, digits and . _ ~ - with / between them"},
		{"an id with a blank", "device:\n  id: gw 7\n", "f:2: device.id: expected names of letters, digits and . _ ~ - with / between them"},
		{"a vendor on two lines", "device:\n  vendor: \"a\\nb\"\n", "f:2: device.vendor: expected text without control characters"},
		{"a label without value", "device:\n  labels:\n    a:\n", "f:3: device.labels.a: expected text, a number, true or false, or a list of texts or of numbers"},
		{"a label that is a section", "device:\n  labels:\n    a: {b: c}\n", "f:3: device.labels.a: expected text, a number, true or false, or a list of texts or of numbers"},
		{"a label with a mixed list", "device:\n  labels:\n    a: [b, 1]\n", "f:3: device.labels.a: expected text, a number, true or false, or a list of texts or of numbers"},
		{"a label that is no number", "device:\n  labels:\n    a: .nan\n", "f:3: device.labels.a: expected text, a number, true or false, or a list of texts or of numbers"},
		{"a relative path", "state:\n  dir: state\n", `f:2: state.dir: expected an absolute path, got "state"`},
		{"an empty path", "wfm:\n  key: \"\"\n", `f:2: wfm.key: expected an absolute path, got ""`},
		{"a containerd that is neither", "runtime:\n  containerd: system\n", `f:2: runtime.containerd: expected embedded or the absolute path of a socket, got "system"`},
		{"a namespace with a slash", "runtime:\n  namespace: a/b\n", "f:2: runtime.namespace: expected at most 76 letters and digits, with single . _ - between them"},
		{"a registry with a scheme", "registries:\n  https://a.example: {}\n", `f:2: registries[https://a.example]: expected a host, or host:port, got "https://a.example"`},
		{"a registry with a port that is none", "registries:\n  a.example:70000: {}\n", `f:2: registries[a.example:70000]: expected a host, or host:port, got "a.example:70000"`},
		{"an unknown key of a registry", "registries:\n  a:\n    skipVerify: true\n", "f:3: registries.a.skipVerify: unknown key; known here: ca, credentials, insecure, mirrors, plainHTTP"},
		{"a mirror with a path", "registries:\n  a:\n    mirrors:\n      - b\n      - c/d\n", `f:5: registries.a.mirrors[1]: expected a host, or host:port, got "c/d"`},
		{"a mirror that is missing", "registries:\n  a:\n    mirrors:\n      -\n", "f:4: registries.a.mirrors[0]: expected text, got nothing"},

		{"a URL without TLS", "wfm:\n  url: http://wfm.example\n", "f:2: wfm.url: expected a URL that begins with https://"},
		{"a URL without host", "wfm:\n  url: https:///margo\n", "f:2: wfm.url: expected a host after https://, with a port where it is not 443"},
		{"a URL with a password", "wfm:\n  url: https://me:secret@wfm.example\n", "f:2: wfm.url: expected a URL without user and password; the device shows its certificate"},
		{"a URL with a query", "wfm:\n  url: https://wfm.example/?a=b\n", "f:2: wfm.url: expected a URL without a query"},
		{"a URL with a fragment", "wfm:\n  url: https://wfm.example/#a\n", "f:2: wfm.url: expected a URL without a fragment"},
		{"a URL that is none", "wfm:\n  url: \"https://wfm.example:port\"\n", "f:2: wfm.url: expected a URL such as https://wfm.example.com"},

		{"a revision for later", "wfm:\n  revision: 1.0.0-rc.2\n", "f:2: wfm.revision: 1.0.0-rc.2 is not supported by this version"},
		{"a revision that does not exist", "wfm:\n  revision: 2.0.0\n", `f:2: wfm.revision: expected 1.0.0-rc.3, got "2.0.0"`},
		{"a trust bundle to download", "wfm:\n  trustBundle: https://mis.example/bundle.json\n", "f:2: wfm.trustBundle: a URL is not supported by this version; expected the absolute path of a file"},
		{"an approval for later", "policy:\n  approval: updates\n", "f:2: policy.approval: updates is not supported by this version"},
		{"poll windows", "poll:\n  windows:\n    - Mon-Fri 22:00-04:00\n", "f:3: poll.windows: not supported by this version; it has to be empty"},
		{"downtime", "poll:\n  downtime: [Sun]\n", "f:2: poll.downtime: not supported by this version; it has to be empty"},
		{"policy windows", "policy:\n  windows: [Sun]\n", "f:2: policy.windows: not supported by this version; it has to be empty"},
		{"admission rules", "policy:\n  allow:\n    privileged: true\n", "f:3: policy.allow: not supported by this version; it has to be empty"},

		{
			"several at once, in their order", "poll:\n  interval: 1\nwfm:\n  url: http://a\n  ulr: b\n",
			"f:2: poll.interval: expected a duration with its unit, such as 60s or 5m, got the number \"1\"\n" +
				"f:4: wfm.url: expected a URL that begins with https://\n" +
				"f:5: wfm.ulr: unknown key; known here: certificate, key, revision, trustBundle, url",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := config.Parse("f", []byte(test.file))
			if err == nil {
				t.Fatalf("read as %+v", c)
			}
			if err.Error() != test.want {
				t.Errorf("got:\n%v\nwant:\n%s", err, test.want)
			}
		})
	}
}

func TestReportsAboutAFileAreBounded(t *testing.T) {
	var file strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&file, "key%d: %s\n", i, strings.Repeat("x", 100))
	}
	_, err := config.Parse("f", []byte(file.String()))
	if err == nil || len(err.Error()) > 20<<10 || !strings.HasSuffix(err.Error(), "f:51: there are more mistakes from here on") {
		t.Errorf("got %d bytes: %.500v", len(fmt.Sprint(err)), err)
	}
	_, err = config.Parse("f", []byte(strings.Repeat("#", 300<<10)))
	if err == nil || err.Error() != "f: the file has more than 262144 bytes" {
		t.Errorf("got %v for a huge file", err)
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if _, err := config.Load(file); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v for a missing file", err)
	}
	if err := os.WriteFile(file, []byte("log:\n  levl: info\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var mistake *config.Error
	if _, err := config.Load(file); !errors.As(err, &mistake) || mistake.File != file || mistake.Line != 2 || mistake.Key != "log.levl" {
		t.Errorf("got %v for a file with a mistake", err)
	}
}

func TestTheDaemonRequiresAWFM(t *testing.T) {
	without, err := config.Parse("/etc/margolite/config.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := without.RequireWFM(); err == nil || !strings.HasPrefix(err.Error(), "/etc/margolite/config.yaml: wfm.url: required") {
		t.Errorf("got %v without a WFM", err)
	}
	with, err := config.Parse("f", []byte("wfm: {url: 'https://wfm.example'}"))
	if err != nil {
		t.Fatal(err)
	}
	if err := with.RequireWFM(); err != nil {
		t.Errorf("got %v with a WFM", err)
	}
}

func FuzzParse(f *testing.F) {
	seed, err := os.ReadFile(packaged)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	for _, s := range []string{
		"", "---", "# c\n---\n...", "&a [*a]", "{{{{", "a: b: c", "? ", "log: !!binary aGk=", "\xff\xfe", "%YAML 1.1\n---\n",
		"device: {labels: {a: [1, b], c: .inf, d: 0x1F, e: 2026-01-01}}",
		"registries: {'a:5000': {plainHTTP: true, mirrors: [b, ~]}}",
		"<<: {a: b}", "poll: {interval: 9999999999h, windows: [x]}", "wfm: {url: 'https://[::1%25eth0]:8443/x'}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse("f", data)
		if (c == nil) == (err == nil) {
			t.Fatalf("got %v and %v", c, err)
		}
		if err != nil {
			return
		}
		if c.Poll.Interval < time.Second || c.Runtime.Settle < 0 || !filepath.IsAbs(c.State.Dir) || c.WFM.Revision == "" {
			t.Errorf("accepted %+v", c)
		}
	})
}

func sameConfig(t *testing.T, got, want *config.Config) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(config.Config{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the configuration differs (-want +got):\n%s", diff)
	}
}
