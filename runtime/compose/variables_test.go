package compose_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/sirupsen/logrus"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/test/expect"
)

// silence keeps compose-go, where tests call it to compare, from writing to the
// global logger, and returns what it would have written.
func silence(t *testing.T) *bytes.Buffer {
	t.Helper()
	var written bytes.Buffer
	before := logrus.StandardLogger().Out
	logrus.SetOutput(&written)
	t.Cleanup(func() { logrus.SetOutput(before) })
	return &written
}

func TestLoadReplacesVariablesAsComposeDoes(t *testing.T) {
	silence(t)
	env := map[string]string{"A": "one", "B_2": "two", "EMPTY": "", "DOLLAR": "$A"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	for _, written := range []string{
		"plain", "$A", "${A}", "x${A}y$B_2.z", "$A$A", "$$A", "$${A}", "$$$A", "a$ b", "$1", "100%$", "$UNSET.", "${UNSET}",
		"${UNSET:-d}", "${UNSET-d}", "${EMPTY:-d}", "${EMPTY-d}", "${A:-d}", "${A-d}", "${UNSET:-}",
		"${A:+d}", "${A+d}", "${EMPTY:+d}", "${EMPTY+d}", "${UNSET:+d}", "${UNSET+d}",
		"${A:?e}", "${A?e}", "${EMPTY?e}", "${EMPTY:?e}", "${UNSET:?e}", "${UNSET?e ${A}}",
		"${UNSET:-${A}}", "${UNSET:-${UNSET2:-${B_2}}}", "${UNSET:-a}${UNSET:-b}", "${UNSET:-http://${A}:80/}",
		"${UNSET:-{}}", "${UNSET:-a b}", "${UNSET:-$$x}", "${A", "${}", "${1}", "${A B}", "${A!}", "${A:}", "$DOLLAR", "${UNSET:-a:-b}",
	} {
		t.Run(written, func(t *testing.T) {
			want, wantErr := template.Substitute(written, lookup)
			s, err := loadService(t, "labels: {v: '"+written+"'}", env)
			expect.Require(t, (err != nil) == (wantErr != nil), "error %v, compose-go has %v", err, wantErr)
			if err == nil {
				expect.Equal(t, s.Labels["v"], want, "text, as compose-go has it")
			}
		})
	}
}

func TestLoadReadsFilesOfVariablesAsComposeDoes(t *testing.T) {
	silence(t)
	env := map[string]string{"GIVEN": "outside"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	for name, content := range map[string]string{
		"lines":                   "A=1\nB=two words\n\n# comment\n  C = 3 \nexport D=4\n",
		"no end of the last line": "A=1\nB=2",
		"carriage returns":        "A=1\r\nB='2'\r\n",
		"a byte order mark":       "\ufeffA=1\n",
		"comments behind values":  "A=1 # one\nB=#two\nC=\"3\" # three\nD='4'\n",
		"quotes":                  "A=\"a b\"\nB='a b'\nC=\"\"\nD=''\nE=a\"b\"\n",
		"escapes":                 `A="a\nb\tc\\d\"e\$GIVEN"` + "\n" + `B='a\nb\'c'` + "\n" + `C="\q"` + "\n",
		"values over lines":       "A=\"one\ntwo # not a comment\nthree\"\nB='1\n2'\nC=3\n",
		"variables":               "A=1\nB=$A\nC=${A}x${UNSET:-d}\nD=\"$A $GIVEN\"\nE='$A'\nF=$$A\n",
		"the outside goes first":  "GIVEN=inside\nA=$GIVEN\n",
		"names alone":             "GIVEN\nUNSET\nA=1\n",
		"colons":                  "A: 1\nB: http://x:80/?a=b\n",
		"equal signs in values":   "A=a=b\nB==\n",
		"odd names":               "a.b-c=1\n",
		"an open quote":           "A=\"1\n",
		"a space in a name":       "A B=1\n",
		"a name that is none":     "A$=1\n",
		"a missing variable":      "A=${UNSET:?no}\n",
		"nothing":                 "",
	} {
		t.Run(name, func(t *testing.T) {
			want, wantErr := dotenv.ParseWithLookup(strings.NewReader(content), lookup)
			p, err := loadFiles(t, map[string]string{"compose.yaml": service("env_file: vars"), "vars": content}, env)
			expect.Require(t, (err != nil) == (wantErr != nil), "error %v, compose-go has %v", err, wantErr)
			if err != nil {
				return
			}
			expect.Equal(t, p.Services["web"].Environment, want, "variables, as compose-go has them")
		})
	}
}

func TestLoadPrefersVariablesByWhereTheyComeFrom(t *testing.T) {
	t.Setenv("FROM_PROCESS", "must not be seen")
	t.Setenv("HOME", "/must/not/be/seen")
	p := loaded(t, map[string]string{
		".env":   "PARAMETER=dotenv\nDOTENV=dotenv\nREFERS=${PARAMETER}\n",
		"a.env":  "FROM_A=a\nBOTH=a\nALL=a\n",
		"b.env":  "BOTH=b\nALL=b\nREFERS_B=${PARAMETER} ${ALL}\n",
		"in.env": "INNER=env_file of the include\n",
		"compose.yaml": `
include:
  - {path: sub/compose.yaml, env_file: in.env}
services:
  web:
    image: nginx
    env_file: [a.env, b.env]
    labels:
      parameter: $PARAMETER
      dotenv: $DOTENV
      refers: $REFERS
      process: "${FROM_PROCESS:-none} ${HOME:-none}"
      project: ${COMPOSE_PROJECT_NAME}
    environment:
      ALL: environment
      PARAMETER:
      DOTENV:
      FROM_PROCESS:
`,
		"sub/.env":         "INNER=not used\n",
		"sub/compose.yaml": "services: {inner: {image: x, environment: ['I=${INNER} ${PARAMETER}', DOTENV]}}\n",
	}, map[string]string{"PARAMETER": "given"})
	wantLabels := map[string]string{
		"parameter": "given", "dotenv": "dotenv", "refers": "given", "process": "none none", "project": "plant",
	}
	expect.Equal(t, p.Services["web"].Labels, wantLabels, "labels")
	wantEnvironment := map[string]string{
		"FROM_A": "a", "BOTH": "b", "ALL": "environment", "PARAMETER": "given", "DOTENV": "dotenv", "REFERS_B": "given environment",
	}
	expect.Equal(t, p.Services["web"].Environment, wantEnvironment, "environment")
	wantInner := map[string]string{"I": "env_file of the include given", "DOTENV": "dotenv"}
	expect.Equal(t, p.Services["inner"].Environment, wantInner, "environment of the included service")
	expect.Equal(t, p.Warnings, []string{`service "web": environment names "FROM_PROCESS" without a value and nothing sets it; leaving it out`}, "warnings")
}

func TestLoadWarnsByReturnValueOnly(t *testing.T) {
	logged := silence(t)
	p := loaded(t, map[string]string{
		"compose.yaml": "version: '3'\ninclude: [a.yaml]\n" + service("read_only: yes\nuser: \"${NOBODY}\"\nlabels: {a: \"${X:-$Y}${Z}\"}\nvolumes: ['data:/d:cached']\nenv_file: [a.env]"),
		"a.yaml":       "version: '2'\nservices: {a: {image: x}}\n",
		"a.env":        "A=$IN_FILE\n",
	}, nil)
	want := []string{
		`"yes" is an obsolete spelling of a boolean; write true or false`,
		"a.yaml: version is obsolete and ignored",
		"compose.yaml: version is obsolete and ignored",
		`service "web": volume option "cached" has no effect on Linux`,
		`variable "IN_FILE" is not set and has no default; using an empty value`,
		`variable "NOBODY" is not set and has no default; using an empty value`,
		`variable "Y" is not set and has no default; using an empty value`,
		`variable "Z" is not set and has no default; using an empty value`,
	}
	expect.Equal(t, p.Warnings, want, "warnings")
	expect.Equal(t, logged.String(), "", "logged")
}

func TestLoadPutsServicesTogetherFromSeveralFiles(t *testing.T) {
	files := map[string]string{
		"compose.yaml": `
include: [{path: [inc/compose.yaml, inc/over.yaml]}]
services:
  web:
    extends: {file: one/base.yaml, service: base}
    labels: {own: "1"}
  worker:
    extends: web
    command: work
`,
		"one/base.yaml":    "services: {base: {extends: {file: ../two/base.yaml, service: root}, labels: {one: '1'}, env_file: vars}}\n",
		"one/vars":         "FROM=one\n",
		"two/base.yaml":    "services: {root: {image: nginx, volumes: ['./conf:/conf', 'data:/data'], labels: {two: '1'}, extends: {service: deep}}, deep: {image: x, user: '5'}}\nvolumes: {data: }\n",
		"inc/compose.yaml": "services: {inner: {image: x, volumes: ['./a:/a'], env_file: vars}}\n",
		"inc/over.yaml":    "services: {inner: {image: y}}\n",
		"inc/vars":         "FROM=inc\n",
	}
	// Volumes are not inherited by extends: the file must name them.
	_, err := loadFiles(t, files, nil)
	var missing *compose.Error
	expect.Require(t, errors.As(err, &missing) && missing.Key == "volumes", "error %v, want one about volumes", err)
	files["two/base.yaml"] = strings.Replace(files["two/base.yaml"], ", 'data:/data'", "", 1)
	p := loaded(t, files, nil)
	worker, inner := p.Services["worker"], p.Services["inner"]
	expect.Equal(t, worker.Labels, map[string]string{"own": "1", "one": "1", "two": "1"}, "labels")
	expect.Equal(t, []string{worker.User, worker.Environment["FROM"], worker.Image, worker.Mounts[0].Path},
		[]string{"5", "one", "docker.io/library/nginx:latest", filepath.Join(p.WorkingDir, "two/conf")}, "worker")
	expect.Equal(t, []string{inner.Environment["FROM"], inner.Image, inner.Mounts[0].Path},
		[]string{"inc", "docker.io/library/y:latest", filepath.Join(p.WorkingDir, "inc/a")}, "inner")
}

func TestLoadReadsFilesAroundAProjectOfTheUsersOwn(t *testing.T) {
	base := write(t, map[string]string{
		"app/compose.yaml":    "include: [../shared/compose.yaml]\nservices: {web: {image: x, env_file: ../shared/vars, volumes: ['../data:/data']}}\n",
		"shared/compose.yaml": "services: {other: {image: x}}\n",
		"shared/vars":         "A=1\n",
	})
	p := expect.Value(compose.Load(t.Context(), compose.Options{ProjectName: "p", Files: []string{filepath.Join(base, "app/compose.yaml")}}))(t)
	expect.Equal(t, p.Services["web"].Environment["A"], "1", "A")
	expect.Equal(t, p.Services["web"].Mounts[0].Path, filepath.Join(base, "data"), "mounted path")
}

func TestLoadFollowsNoLinkOutOfThePackage(t *testing.T) {
	base := write(t, map[string]string{"secret": "SECRET=x\n", "app/compose.yaml": service("env_file: vars")})
	app := filepath.Join(base, "app")
	expect.Check(t, os.Symlink(filepath.Join(base, "secret"), filepath.Join(app, "vars")))
	_, err := compose.Load(t.Context(), compose.Options{ProjectName: "p", Files: []string{filepath.Join(app, "compose.yaml")}, Strict: true})
	expectInvalid(t, err, "vars")
}

func TestLoadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(write(t, map[string]string{"compose.yaml": service("")}), "compose.yaml")
	_, err := compose.Load(ctx, compose.Options{ProjectName: "p", Files: []string{path}, Strict: true})
	expect.True(t, errors.Is(err, context.Canceled) && fault.CodeOf(err) != fault.InvalidPackage, "error %v, want context.Canceled", err)
}

func TestLoadRefusesNamesOfProjects(t *testing.T) {
	path := filepath.Join(write(t, map[string]string{"compose.yaml": service("")}), "compose.yaml")
	for _, name := range []string{"", "..", "A", "a/b", "-a", "a b"} {
		_, err := compose.Load(t.Context(), compose.Options{ProjectName: name, Files: []string{path}})
		expectInvalid(t, err, "invalid project name")
	}
}

// Ports go where the caller says if it is certain which are meant, and what makes no
// difference is known.
func TestLoadUsesWhatItIsGiven(t *testing.T) {
	const file = `
services:
  app:
    image: nextcloud
    profiles: ["${WHICH}"]
    ports: ["127.0.0.1:8080:80", "53:53", "5353:53/udp", "7000:7000"]
    environment: {HOST: "${HOST:-db}", ADMIN: }
    env_file: app.env
    secrets: [key]
  cache: {image: redis, ports: ["7001:7000"]}
  agent: {image: agent, network_mode: host, ports: ["9100:9100"]}
secrets: {key: {environment: KEY}}
`
	dir := write(t, map[string]string{"compose.yaml": file, ".env": "FROM=${DOTENV}\nSET=1\n", "app.env": "USER_NAME\nSET=2\n"})
	p, err := compose.Load(t.Context(), compose.Options{
		ProjectName: "plant", Files: []string{filepath.Join(dir, "compose.yaml")},
		Environment: map[string]string{
			"WHICH": "x", "HOST": "h", "ADMIN": "a", "KEY": "k", "DOTENV": "d", "USER_NAME": "u", "COMPOSE_PROFILES": "x", "SET": "given", "REDIS_HOST": "redis",
		},
		Ports: map[string]string{"80/tcp": "9080", "53/udp": "9053", "7000/tcp": "9000", "9100/tcp": "9101", "443/tcp": "9443"},
	})
	expect.Check(t, err)
	var published []string
	for _, port := range p.Services["app"].Ports {
		published = append(published, fmt.Sprintf("%v:%d:%d/%s", port.HostIP, port.HostPort, port.ContainerPort, port.Protocol))
	}
	want := []string{"invalid IP:53:53/tcp", "invalid IP:7000:7000/tcp", "invalid IP:9053:53/udp", "127.0.0.1:9080:80/tcp"}
	expect.Equal(t, published, want, "result")
	expect.Equal(t, p.Unused, map[string]bool{"SET": true, "REDIS_HOST": true, "7000/tcp": true, "9100/tcp": true, "443/tcp": true}, "result")
	warnings := strings.Join(p.Warnings, "\n")
	for _, want := range []string{"container port 443/tcp is published 0 times", "container port 7000/tcp is published 2 times, not once: it is not put on port 9000"} {
		expect.Contains(t, warnings, want, "warnings")
	}
}

func FuzzLoad(f *testing.F) {
	logrus.SetOutput(io.Discard)
	for _, path := range []string{
		"wordpress/compose.yaml", "mosquitto/compose.yaml", "influxdb/compose.yaml",
		"cloud/compose.yaml", "zigbee/compose.yaml", "monitoring/compose.yaml", "edge/compose.yaml",
	} {
		content := expect.Value(os.ReadFile(filepath.Join("testdata", path)))(f)
		f.Add(string(content), "A=1\nB=\"$A\"\n")
	}
	f.Add(service("extends: {file: base.yaml, service: base}"), "")
	f.Add("include: [base.yaml, {path: [base.yaml, .env]}]\n"+service("env_file: .env"), "X='1\n2'\n")
	f.Add(service("volumes: [{type: bind, source: ../x, target: /y}]\nports: [1-3:1-3, {target: 5, published: '6'}]"), "")
	f.Add(service("ports: !override [1-3:80]\nuser: !reset null\nhealthcheck: {test: x, interval: 1s}\nulimits: {core: '0'}"), "COMPOSE_PROFILES=a")
	f.Add(service("networks: {n: {ipv4_address: 10.0.0.2}}\nsecrets: [s]\ngpus: all")+"networks: {n: {ipam: {config: [{subnet: 10.0.0.0/24}]}}}\nsecrets: {s: {file: .env}}\n", "")
	f.Add("a: &a [*a]\nservices: {<<: {web: {image: x}}}\n", "")
	f.Fuzz(func(t *testing.T, content, dotenv string) {
		p, err := loadFiles(t, map[string]string{
			"compose.yaml": content,
			".env":         dotenv,
			"base.yaml":    "services: {base: {image: x, labels: {a: b}}}\n",
		}, map[string]string{"A": "given"})
		if err != nil {
			expectBlamed(t, err)
			return
		}
		expect.Equal(t, len(p.Order()), len(p.Services), "services in order")
		for name, s := range p.Services {
			expect.OK(t, expect.ErrorOf(p.ConfigHash(name, "")))
			for _, a := range s.Attached {
				expect.Equal(t, p.Networks[a.Network] != nil, true, "the project has network %q", a.Network)
			}
			for _, file := range s.Files {
				expect.Equal(t, filepath.IsAbs(file.Target), true, "%q is absolute", file.Target)
			}
			for _, m := range s.Mounts {
				expect.True(t, m.Volume == "" || p.Volumes[m.Volume] != nil, "mounts %q, which the project does not have", m.Volume)
				if (m.Volume != "" && m.Path != "") || m.Anonymous == (m.Volume+m.Path != "") || !filepath.IsAbs(m.Target) {
					t.Errorf("mount %+v", m)
				}
			}
		}
	})
}
