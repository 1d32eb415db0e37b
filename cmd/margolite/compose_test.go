package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/expect"
)

const shop = "name: shop\nservices: {web: {image: app}}\n"

func TestComposeSpeaksToTheAgent(t *testing.T) {
	a := &fakeAgent{}
	file := serve(t, a)
	compose := write(t, filepath.Join(t.TempDir(), "app.yaml"), shop)
	for _, c := range []struct {
		args  []string
		asked string
		out   string
	}{
		{[]string{"compose", "up", "-f", compose}, "up shop app.yaml TAG=1.0", "shop-web-1  app@sha256:000000000000  web      Up 5 minutes (healthy)"},
		{[]string{"compose", "-f", compose, "up", "-d"}, "up shop app.yaml TAG=1.0", "NAME"},
		{[]string{"compose", "--config", file, "--file=" + compose, "-p", "other", "up"}, "up other app.yaml TAG=1.0", "other-web-1"},
		{[]string{"compose", "pull", "-f", compose}, "pull shop always", ""},
		{[]string{"compose", "down", "-p", "shop"}, "down shop", ""},
		{[]string{"compose", "-p", "shop", "down"}, "down shop", ""},
		{[]string{"compose", "logs", "web", "--tail", "5", "-p", "shop"}, "", "shop [web] follow false tail 5\n"},
		{[]string{"compose", "-p", "shop", "logs", "-f", "-n", "0", "web", "job"}, "", "shop [web job] follow true tail 0\n"},
		{[]string{"compose", "logs", "-ft", "-p", "shop", "--tail", "all"}, "", "shop [] follow true tail all\n"},
		{[]string{"compose", "logs", "-f", compose}, "", "shop [] follow false tail all\n"},
		{[]string{"compose", "ps", "-p", "empty", "--json"}, "", "[]\n"},
		{[]string{"compose", "ps", "-a"}, "", "every-web-1"},
		{[]string{"compose", "ps", "-p", "shop"}, "", "nightly     job@sha256:1             job      Exited (3) 2 hours ago, 2 restarts"},
		{[]string{"compose", "ps", "-p", "shop", "-q", "job"}, "", "d\n"},
		{[]string{"compose", "ps", "-p", "shop", "--services"}, "", "job\nweb\n"},
	} {
		a.told = nil
		got := call(t, append([]string{"--config", file}, c.args...)...)
		if got.code != command.Done || !strings.Contains(got.out, c.out) || strings.Join(a.told, "; ") != c.asked {
			t.Errorf("margolite %q: %+v, the agent was asked %q, want %q and %q", c.args, got, a.told, c.asked, c.out)
		}
	}
	var services []control.Service
	got := call(t, "compose", "ps", "--json", "-p", "shop", "--config", file)
	if err := json.Unmarshal([]byte(got.out), &services); err != nil || len(services) != 2 || services[0].Health.Status != "healthy" {
		t.Errorf("ps --json: %+v, %v", got, err)
	}
	call(t, "compose", "up", "-f", "/nonexistent.yaml", "--config", file).fails(t, "nonexistent.yaml")
	call(t, "compose", "ps", "-p", "shop", "wbe", "--config", file).fails(t, `"wbe"`, "job, web")
	expect.Equal(t, call(t, "compose", "down", "-p", "empty", "--config", file), answer{command.Done, "", "Project empty has no containers.\n"}, "a project that is not there")
}

func TestComposePassesOptionsOn(t *testing.T) {
	a := &fakeAgent{}
	file := serve(t, a)
	dir := t.TempDir()
	first := write(t, filepath.Join(dir, "a.yaml"), shop)
	second := write(t, filepath.Join(dir, "b.yaml"), "services: {web: {read_only: true}}\n")
	vars := write(t, filepath.Join(dir, "vars"), "TAG=2.0\nOTHER=${TAG}-x\n")
	got := call(t, "compose", "--config", file, "-f", first, "-f", second, "--profile", "debug", "--profile", "test", "--project-directory", dir, "--env-file", vars,
		"up", "--scale", "web=3", "--scale", "job=0", "--pull", "always", "--timeout", "7", "--quiet", "web")
	seven := 7
	want := control.ComposeRequest{
		Project: "shop", File: first, Files: []string{second}, Directory: dir,
		Environment: map[string]string{"TAG": "1.0", "OTHER": "1.0-x"}, Profiles: []string{"debug", "test"},
		Scale: map[string]int{"web": 3, "job": 0}, Services: []string{"web"}, Pull: "always", Timeout: &seven,
	}
	expect.Equal(t, got, answer{}, "it says")
	expect.Equal(t, a.up, want, "the agent was asked for")
	call(t, "compose", "--config", file, "-p", "shop", "down", "-v", "-t", "7")
	expect.Equal(t, a.down, control.DownRequest{Project: "shop", Volumes: true, Timeout: &seven}, "the agent was asked for")
	call(t, "compose", "--config", file, "-f", first, "up", "--force-recreate")
	expect.Equal(t, a.up.Recreate, true, "recreate")
}

func TestComposeFilesAreFound(t *testing.T) {
	a := &fakeAgent{}
	config := serve(t, a)
	dir := t.TempDir()
	for _, name := range []string{"compose.yml", "docker-compose.yaml", "compose.override.yaml", "one.yaml", "two.yaml"} {
		write(t, filepath.Join(dir, name), "services: {web: {image: app}}\n")
	}
	below := filepath.Join(dir, "some", "where")
	check(t, os.MkdirAll(below, 0o700))
	t.Chdir(below)
	call(t, "compose", "--config", config, "up")
	expect.Equal(t, append(a.up.Files, a.up.File), []string{dir + "/compose.override.yaml", dir + "/compose.yml"}, "files above")
	t.Chdir(dir)
	write(t, filepath.Join(dir, ".env"), "COMPOSE_FILE=one.yaml:two.yaml\nCOMPOSE_PROJECT_NAME=named\n")
	call(t, "compose", "--config", config, "up")
	expect.Equal(t, append(a.up.Files, a.up.File, a.up.Project), []string{dir + "/two.yaml", dir + "/one.yaml", "named"}, "files of COMPOSE_FILE, and project")
}

// What only the command can read is read once, by the command, and relative paths in it start where it runs.
func TestComposeReadsStandardInputAndPipes(t *testing.T) {
	a := &fakeAgent{}
	config := serve(t, a)
	dir := t.TempDir()
	t.Chdir(dir)
	r, w, err := os.Pipe()
	check(t, err)
	defer r.Close()
	_, _ = io.WriteString(w, "name: piped\n")
	w.Close()
	check(t, os.Mkdir("x", 0o700))
	pipe := fmt.Sprintf("/dev/fd/%d", r.Fd())
	text := "name: typed\n"
	for _, files := range [][]string{{pipe, "-"}, {"-", write(t, filepath.Join(dir, "x", "b.yaml"), shop)}} {
		if got := callWith(t, text, "compose", "--config", config, "-f", files[0], "-f", files[1], "up"); got.code != command.Done {
			t.Fatalf("%q: %+v", files, got)
		}
		in := filepath.Join(dir, "-")
		if up := a.up; up.Directory != dir || string(up.Contents[in]) != text || files[0] == pipe && (up.Project != "typed" || up.File != pipe ||
			len(up.Contents) != 2 || string(up.Contents[pipe]) != "name: piped\n") || files[0] == "-" && (up.Project != "shop" || up.File != in) {
			t.Errorf("%q: the agent was asked for %+v", files, up)
		}
	}
	write(t, "x/base.yaml", "services: {web: {tty: true}}")
	for _, c := range []struct{ typed, says string }{
		{"services: {web: {image: app, volumes: ['./data:/data'], extends: {file: x/base.yaml, service: web}}}", filepath.Join(dir, "data")},
		{"services: {web: {imag: app}}", "cannot load Compose file -: "},
		{strings.Repeat("#", 600<<10), "has more than 524288 bytes"},
	} {
		got := callWith(t, c.typed, "compose", "-f", "-", "config")
		expect.Contains(t, got.out+got.err, c.says, "it says")
	}
	expect.Contains(t, callWith(t, text, "compose", "-f", "-", "-f", "-", "config").err, "- can only be read once", "twice")
}

func TestProgressIsPlainWhereThereIsNoTerminal(t *testing.T) {
	file := serve(t, &fakeAgent{})
	compose := write(t, filepath.Join(t.TempDir(), "app.yaml"), shop)
	const want = "warning: doubtful\npulling registry/app:1.0\npulled registry/app:1.0, 2.0 kB\ncreate container web-1\nstart container web-1\nsettle\n"
	expect.Equal(t, call(t, "compose", "up", "-f", compose, "--config", file).err, want, "progress")
	expect.Equal(t, call(t, "compose", "up", "-q", "-f", compose, "--config", file), answer{}, "with --quiet")
}

func TestComposeConfigTouchesNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "web.env"), "FROM_FILE=${TAG}\n")
	good := write(t, filepath.Join(dir, "good.yaml"), `name: shop
services:
  web: {image: "app:${TAG}", env_file: web.env, depends_on: [db], volumes: ["data:/data"]}
  db: {image: db}
volumes: {data: {}}
`)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "app:1.0"},
		{nil, "FROM_FILE: \"1.0\""},
		{[]string{"--json"}, `"FROM_FILE": "1.0"`},
		{[]string{"--services"}, "db\nweb\n"},
		{[]string{"--volumes"}, "data\n"},
		{[]string{"--images"}, "docker.io/library/app:1.0\n"},
		{[]string{"-q"}, ""},
	} {
		call(t, append([]string{"compose", "-f", good, "config"}, c.args...)...).ends(t, command.Done, c.want, "")
	}
	// Docker would serve [::1]:8080 as well.
	ports := write(t, filepath.Join(dir, "ports.yaml"), "services: {web: {image: app, ports: ['8080:80']}, db: {image: db, ports: ['8081:80']}}\n")
	const note = "note: network \"default\" has no enable_ipv6: true: its ports are published on IPv4 addresses only\n"
	expect.Equal(t, call(t, "compose", "-f", ports, "config", "-q"), answer{command.Done, "", note}, "ports")
	bad := write(t, filepath.Join(dir, "bad.yaml"), "services: {web: {image: app, colour: red}}\n")
	call(t, "compose", "config", "-f", bad).fails(t, "colour", "web")
	t.Chdir(t.TempDir())
	call(t, "compose", "config").fails(t, "fix: name one with -f FILE")
}

func TestLogsCarryTheirFlags(t *testing.T) {
	a := &fakeAgent{}
	file := serve(t, a)
	got := call(t, "logs", "d", "a", "b", "-t", "--no-log-prefix", "--since", "2026-01-31T12:00:00Z", "--until", "1000", "--config", file)
	want := control.LogsRequest{
		Deployment: "d", Services: []string{"a", "b"}, Timestamps: true, Prefix: control.PrefixNever,
		Since: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC), Until: time.Unix(1000, 0).UTC(),
	}
	expect.Equal(t, a.logs, want, "the agent was asked for")
	expect.Equal(t, got.err, "", "%+v", got)
	call(t, "compose", "-p", "p", "logs", "--since", "10m", "--config", file)
	if ago := time.Since(a.logs.Since); ago < 9*time.Minute || ago > 11*time.Minute || a.logs.Prefix != control.PrefixAlways {
		t.Errorf("the agent was asked for %+v", a.logs)
	}
}

func TestPruneAsksFirst(t *testing.T) {
	a := &fakeAgent{items: []control.Unneeded{
		{Kind: control.UnneededVolume, Project: "old", Name: "data", Bytes: 1500},
		{Kind: control.UnneededImage, Name: "app@sha256:" + strings.Repeat("a", 64), Bytes: 28 << 20},
	}}
	file := serve(t, a)
	for _, c := range []struct {
		args, typed string
		code        int
		asked       string
		out         []string
	}{
		{"--dry-run", "", command.Done, "", []string{"image  app@sha256:aaaaaaaaaaaa  29.4 MB", "1 volume that nothing needs"}},
		{"", "n\n", command.Failed, "", []string{"Remove them?", "nothing was removed"}},
		{"", "", command.Failed, "", []string{"nothing was removed"}},
		{"", "y\n", command.Done, "prune app", []string{"removed 1 of 1"}},
		{"--yes --volumes", "", command.Done, "prune data", []string{"volume  old/data  1.5 kB"}},
		{"-y --volumes --images", "", command.Done, "prune data; prune app", []string{"2 objects, 29.4 MB at most"}},
		{"--dry-run --json --volumes", "", command.Done, "", []string{`"project": "old"`}},
	} {
		a.told = nil
		got := callWith(t, c.typed, append([]string{"prune", "--config", file}, strings.Fields(c.args)...)...)
		asked := strings.ReplaceAll(strings.Join(a.told, "; "), "@sha256:"+strings.Repeat("a", 64), "")
		if got.code != c.code || asked != c.asked {
			t.Errorf("prune %s, answered %q: %+v, the agent was asked %q, want %q", c.args, c.typed, got, asked, c.asked)
		}
		for _, want := range c.out {
			expect.Contains(t, got.out+got.err, want, "prune %s", c.args)
		}
	}
	a.items = nil
	expect.Equal(t, call(t, "prune", "--config", file), answer{command.Done, "There is nothing to remove.\n", ""}, "where there is nothing")
}

// What could not be measured says why, and what cannot be removed yet says when it is.
func TestPruneSaysWhatItCouldNotDo(t *testing.T) {
	volume := control.Unneeded{Kind: control.UnneededVolume, Project: "old", Name: "data", Bytes: 1500, Error: "cannot measure volume:\ncontext deadline exceeded"}
	later := control.Unneeded{Kind: control.UnneededImage, Name: "app", Bytes: 9, Later: true}
	a := &fakeAgent{items: []control.Unneeded{volume, {Kind: control.UnneededImage, Name: "app", Bytes: 9}}, pruned: []control.Unneeded{volume, later}}
	want := "volume  old/data  at least 1.5 kB: cannot measure volume: context deadline exceeded\n" +
		"image   app       9 B\n2 objects, 1.5 kB or more\nremoved 1 of 2\n1 image will be removed once the current downloads have ended\n"
	got := call(t, "prune", "--config", serve(t, a), "--yes", "--volumes", "--images")
	expect.Equal(t, got, answer{command.Done, want, ""}, "prune")
}

// Without the agent nobody knows what its deployments need.
func TestPruneNeedsTheAgentThatHasDeployments(t *testing.T) {
	file := configuration(t)
	state := filepath.Join(filepath.Dir(file), "state")
	check(t, os.MkdirAll(state, 0o700))
	write(t, filepath.Join(state, "margolite.db"), "")
	call(t, "prune", "--yes", "--config", file).fails(t, "cannot find out what deployments need", "fix: start it")
}
