package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/cosigned"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/openpgp"
)

// answer is what one invocation came to.
type answer struct {
	code     int
	out, err string
}

// fails expects that the command failed and gave these reasons.
func (a answer) fails(t *testing.T, reasons ...string) {
	t.Helper()
	expect.Equal(t, a.code, command.Failed, "exit code of %+v", a)
	for _, reason := range reasons {
		expect.Contains(t, a.err, reason, "standard error")
	}
}

// ends expects an exit code and a part of each stream; "": nothing was written to it.
func (a answer) ends(t *testing.T, code int, out, err string) {
	t.Helper()
	if a.code != code || !strings.Contains(a.out, out) || !strings.Contains(a.err, err) || out == "" && a.out != "" || err == "" && a.err != "" {
		t.Errorf("%+v, want code %d, %q and %q", a, code, out, err)
	}
}

// call runs one command line.
func call(t *testing.T, args ...string) answer {
	t.Helper()
	return callWith(t, "", args...)
}

// callWith is call for a command that reads what is typed.
func callWith(t *testing.T, typed string, args ...string) answer {
	t.Helper()
	var out, err bytes.Buffer
	code := (&cli{in: strings.NewReader(typed), out: &out, err: &err, env: []string{"TAG=1.0"}}).main(t.Context(), args)
	return answer{code, out.String(), err.String()}
}

// fakeAgent answers on a control socket with what a test put into it.
type fakeAgent struct {
	control.Projects
	mu      sync.Mutex // what is below is also used while another process asks
	status  control.Status
	syncErr error
	up      control.ComposeRequest
	down    control.DownRequest
	logs    control.LogsRequest
	command control.ExecRequest
	exec    func(context.Context, control.ExecRequest, control.ExecStreams) (int, error)
	items   []control.Unneeded
	pruned  []control.Unneeded // the answer to a prune; nil: all of the items
	endless bool               // logs are followed until their reader is gone

	onSync func() // what a poll changes
	site
}

func (a *fakeAgent) Status(context.Context) (*control.Status, error) { return &a.status, nil }

func (a *fakeAgent) Sync(context.Context) error {
	if a.onSync != nil {
		a.onSync()
	}
	return a.syncErr
}

func (a *fakeAgent) AcceptRollback(_ context.Context, r control.RollbackRequest) error {
	return a.tell("accept version %d %s", r.Version, r.Digest)
}

func (a *fakeAgent) Capabilities(context.Context) (json.RawMessage, error) {
	return json.RawMessage(`{"properties":{"id":"edge-01"}}`), nil
}

func (a *fakeAgent) Metrics(context.Context) ([]byte, error) {
	return []byte("margolite_container_running{service=\"we\x1b[31mb\"} 1\n"), nil
}
func (a *fakeAgent) Panicked(string, any)                      {}
func (a *fakeAgent) Subscribe() (<-chan control.Event, func()) { return nil, func() {} }

func (a *fakeAgent) Logs(ctx context.Context, r control.LogsRequest, w io.Writer) error {
	a.mu.Lock()
	a.logs = r
	a.mu.Unlock()
	tail := "all"
	if r.Tail != nil {
		tail = fmt.Sprint(*r.Tail)
	}
	_, err := fmt.Fprintf(w, "%s%s %s follow %v tail %s\n", r.Deployment, r.Project, r.Services, r.Follow, tail)
	if a.endless {
		<-ctx.Done()
	}
	return err
}

func (a *fakeAgent) Exec(ctx context.Context, r control.ExecRequest, s control.ExecStreams) (int, error) {
	a.mu.Lock()
	a.command = r
	a.mu.Unlock()
	return a.exec(ctx, r, s)
}

func (a *fakeAgent) Unneeded(context.Context) ([]control.Unneeded, error) { return a.items, nil }

func (a *fakeAgent) Prune(_ context.Context, items []control.Unneeded) ([]control.Unneeded, error) {
	for _, u := range items {
		_ = a.tell("prune %s", u.Name)
	}
	if a.pruned != nil {
		return a.pruned, nil
	}
	return items, nil
}

func (a *fakeAgent) ComposeUp(_ context.Context, r control.ComposeRequest, notify func(control.Event)) error {
	a.mu.Lock()
	a.up = r
	a.mu.Unlock()
	_ = a.tell("up %s %s TAG=%s", r.Project, filepath.Base(r.File), r.Environment["TAG"])
	notify(control.Event{Kind: control.Warning, Text: "warning: doubtful"})
	notify(control.Event{Kind: control.Transfer, Progress: &control.Progress{Object: "registry/app:1.0", Done: 1, Total: 2000}})
	notify(control.Event{Kind: control.Transfer, Progress: &control.Progress{Object: "registry/app:1.0", Done: 2000, Total: 2000}})
	for _, step := range []string{"create container web-1", "start container web-1", "settle"} {
		for _, state := range []string{control.Begun, ""} {
			notify(control.Event{Kind: control.ServiceChanged, Service: "web", Text: step, State: state})
		}
	}
	return nil
}

func (a *fakeAgent) ComposePull(_ context.Context, r control.ComposeRequest, notify func(control.Event)) error {
	a.up = r
	_ = a.tell("pull %s %s", r.Project, r.Pull)
	notify(control.Event{Kind: control.Transfer, Progress: &control.Progress{Object: "registry/app:1.0", Done: 2000, Total: 2000}})
	return nil
}

func (a *fakeAgent) ComposeDown(_ context.Context, r control.DownRequest) error {
	a.mu.Lock()
	a.down = r
	a.mu.Unlock()
	return a.tell("down %s", r.Project)
}

func (a *fakeAgent) ComposePs(_ context.Context, project string) ([]control.Service, error) {
	if project == "empty" {
		return nil, nil
	}
	if project == "" {
		project = "every"
	}
	code := 3
	started, ended := time.Now().Add(-5*time.Minute), time.Now().Add(-2*time.Hour)
	return []control.Service{
		{
			Project: project, Name: "web", Number: 1, State: "running", Container: strings.Repeat("c", 32), Image: "app@sha256:" + strings.Repeat("0", 64),
			Ports: []string{"0.0.0.0:80->80/tcp"}, Started: started, Health: &control.Health{Status: "healthy"},
		},
		{Project: project, Name: "job", Number: 1, State: "stopped", Container: "d", Image: "job@sha256:1", ContainerName: "nightly", ExitCode: &code, Ended: ended, Restarts: 2},
	}, nil
}

// serve lets a answer for as long as the test runs, and returns the
// configuration that leads to it.
func serve(t *testing.T, a *fakeAgent) string {
	t.Helper()
	file := configuration(t)
	l := expect.Value(control.Listen(filepath.Join(filepath.Dir(file), "control.sock")))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- control.NewServer(a, slog.New(slog.DiscardHandler)).Run(ctx, l, nil) }()
	t.Cleanup(func() {
		cancel()
		expect.OK(t, <-done)
	})
	return file
}

// configuration writes one whose socket nobody listens on.
func configuration(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "cli-") // paths of sockets are short
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return write(t, filepath.Join(dir, "config.yaml"), fmt.Sprintf("device: {id: edge-01}\nstate: {dir: %[1]s/state, run: %[1]s}\n", dir))
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	check(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestWrongUsageIsTwo(t *testing.T) {
	for text, args := range map[string][]string{
		"no command given":                              {},
		`unknown command "stauts"`:                      {"stauts"},
		"flag provided but not defined: -jsn":           {"status", "--jsn"},
		"flag provided but not defined: -json":          {"--json", "status"},
		"flag needs an argument: -config":               {"status", "--config"},
		`status does not take the argument "now"`:       {"status", "now"},
		"give logs a deployment":                        {"logs"},
		`invalid value "few" for flag -tail`:            {"logs", "a", "--tail", "few"},
		`invalid value "soon" for flag -since`:          {"logs", "a", "--since", "soon"},
		"give exec a deployment":                        {"exec", "d", "web"},
		"give compose exec a service and a command":     {"compose", "exec", "web"},
		"use SERVICE=NUMBER":                            {"compose", "up", "--scale", "web"},
		"use always, missing or never":                  {"compose", "up", "--pull", "sometimes"},
		"--attach or --detach, not both":                {"compose", "up", "-d", "--attach"},
		"--force-recreate cannot be limited":            {"compose", "up", "--force-recreate", "web"},
		"use 0 to 3600 seconds":                         {"compose", "down", "-t", "-1"},
		"use always or missing":                         {"compose", "pull", "--policy", "never"},
		"give csr --id or --name":                       {"csr"},
		"--id or --name, not both":                      {"csr", "--id", "spiffe://a/margo/wfm/b/client/c", "--name", "d"},
		"is not a SPIFFE ID":                            {"csr", "--id", "gw-07"},
		"is the ID of a WFM":                            {"csr", "--id", "spiffe://a/margo/wfm/b"},
		"give compose one of":                           {"compose"},
		`unknown compose command "start"`:               {"compose", "start"},
		`compose down does not take the argument "web"`: {"compose", "down", "web"},
		"give approve a deployment and":                 {"approve"},
		"optionally its revision, or --all":             {"approve", "d", "r", "s"},
		"give approve a deployment or --all":            {"approve", "--all", "d"},
		`invalid revision "latest"`:                     {"approve", "d", "latest"},
		`invalid revision "sha256:abcdef0"`:             {"reject", "d", "sha256:abcdef0"},
		`invalid value "2 hours" for flag -for`:         {"hold", "--for", "2 hours"},
		`invalid value "90000h" for flag -for`:          {"hold", "--for=90000h"},
		"give release --as or --all, not both":          {"release", "--as", "a", "--all"},
		`invalid value "0" for flag -last`:              {"history", "--last", "0"},
		"--verify checks the whole journal":             {"history", "--verify", "--deployment", "d"},
	} {
		got := call(t, args...)
		if got.code != command.Usage || !strings.Contains(got.err, text) || !strings.HasSuffix(got.err, " --help`\n") || got.out != "" {
			t.Errorf("margolite %q: code %d, stdout %q, stderr %q, want 2 and %q", args, got.code, got.out, got.err, text)
		}
	}
	call(t, "compose", "up", "--colour").ends(t, command.Usage, "", "fix: see `margolite compose up --help`\n")
	call(t).ends(t, command.Usage, "", "fix: see `margolite --help`\n")
}

func TestHelpGoesToStandardOutput(t *testing.T) {
	for want, args := range map[string][]string{
		"Commands:":                        {"help"},
		"status  ":                         {"--help"},
		"Usage: margolite logs DEPLOYMENT": {"logs", "--help"},
		"-n, --tail N":                     {"logs", "-h"},
		"Usage: margolite csr --id SPIFFE-ID|--name":                   {"csr", "--help"},
		"Usage: margolite compose up|down":                             {"compose", "--help"},
		"  -p, --project-name PROJECT use this PROJECT name":           {"compose", "up", "--help"},
		"Usage: margolite compose exec SERVICE":                        {"compose", "exec", "-h"},
		"  pull     pull the images":                                   {"compose", "-h"},
		"--config FILE             read the configuration from FILE\n": {"status", "--help"},
	} {
		if got := call(t, args...); got.code != command.Done || !strings.Contains(got.out, want) || got.err != "" {
			t.Errorf("margolite %q: code %d, stdout %q, stderr %q, want 0 and %q", args, got.code, got.out, got.err, want)
		}
	}
}

func TestConfigurationIsNamedInAnyPlace(t *testing.T) {
	file := serve(t, &fakeAgent{})
	for _, args := range [][]string{
		{"--config", file, "logs", "d", "web", "--tail", "3"},
		{"--config=" + file, "logs", "--tail=3", "d", "web"},
		{"logs", "--config", file, "d", "web", "-tail", "3"},
		{"logs", "d", "--config", file, "web", "--tail", "3"},
		{"logs", "d", "web", "--tail", "3", "--config", file},
		{"--config", "/nonexistent", "logs", "--tail", "3", "--config", file, "--", "d", "web"},
	} {
		got := call(t, args...)
		if want := "d [web] follow false tail 3\n"; got.code != command.Done || got.out != want || got.err != "" {
			t.Errorf("margolite %q: code %d, stdout %q, stderr %q, want %q", args, got.code, got.out, got.err, want)
		}
	}
	expect.Equal(t, call(t, "--config", file, "logs", "--follow", "--", "--odd").out, "--odd [] follow true tail all\n", "an argument behind --")
}

func TestBrokenConfigurationIsNamedWithAHint(t *testing.T) {
	dir := t.TempDir()
	for file, want := range map[string]string{
		filepath.Join(dir, "missing.yaml"):                                      "name the configuration with --config FILE",
		write(t, filepath.Join(dir, "wrong.yaml"), "poll:\n  intervall: 60s\n"): "correct the configuration",
	} {
		for _, verb := range []string{"status", "run", "check", "capabilities"} {
			got := call(t, verb, "--config", file)
			if got.code != command.Failed || got.out != "" || !strings.Contains(got.err, filepath.Base(file)) || !strings.Contains(got.err, "fix: "+want) {
				t.Errorf("%s with %s: code %d, stdout %q, stderr %q", verb, file, got.code, got.out, got.err)
			}
		}
	}
	call(t, "status", "--config", filepath.Join(dir, "wrong.yaml")).fails(t, "wrong.yaml:2: poll.intervall")
}

func TestMissingAgentIsNamedWithAHint(t *testing.T) {
	file := configuration(t)
	want := "the agent is not running: nothing listens on " + filepath.Dir(file) + "/control.sock\nfix: start it with `margolite run`"
	for _, args := range [][]string{
		{"status"},
		{"logs", "d"},
		{"approve", "d"},
		{"hold"},
		{"history", "--verify"},
	} {
		call(t, append(args, "--config", file)...).ends(t, command.Failed, "", want)
	}
}

func TestCapabilitiesAreToldWithAndWithoutAnAgent(t *testing.T) {
	call(t, "capabilities", "--json", "--config", serve(t, &fakeAgent{})).ends(t, command.Done, `{"properties":{"id":"edge-01"}}`+"\n", "")
	file := configuration(t)
	got := call(t, "capabilities", "--json", "--config", file)
	var doc struct{ Properties struct{ ID string } }
	if err := json.Unmarshal([]byte(got.out), &doc); err != nil || got.code != command.Done || doc.Properties.ID != "edge-01" {
		t.Errorf("without an agent: %+v, %v", got, err)
	}
	call(t, "capabilities", "--config", file).ends(t, command.Done, "\n  id: edge-01\n", "")
}

func TestErrorsOfTheAgentAreFailures(t *testing.T) {
	a := &fakeAgent{}
	file := serve(t, a)
	expect.Equal(t, call(t, "sync", "--config", file), answer{}, "a good sync")
	a.syncErr = errors.New("manifest refused: version 4 is lower than the accepted 5")
	call(t, "sync", "--config", file).ends(t, command.Failed, "", "margolite: "+a.syncErr.Error()+"\n")
}

// The names and forms of the document are a contract: this test only ever grows.
func TestStatusDocumentIsStable(t *testing.T) {
	const empty = `{
  "device": "edge-01",
  "agent": {
    "version": "",
    "started": "0001-01-01T00:00:00Z"
  },
  "wfm": {
    "url": "",
    "reachable": false
  },
  "outbox": 0,
  "deployments": []
}
`
	for _, want := range []string{string(expect.Value(os.ReadFile("testdata/status.json"))(t)), empty} {
		a := &fakeAgent{}
		known := json.NewDecoder(strings.NewReader(want))
		known.DisallowUnknownFields()
		check(t, known.Decode(&a.status))
		got := call(t, "status", "--json", "--config", serve(t, a))
		expect.True(t, got.code == command.Done && got.out == want, "the document is\n%s\nwant\n%s%s", got.out, want, got.err)
	}
}

func TestStatusForPeople(t *testing.T) {
	now := time.Now()
	next, contact := now.Add(time.Hour), now.Add(-72*time.Hour)
	a := &fakeAgent{status: control.Status{
		Device: "edge-01",
		WFM:    control.WFMStatus{LastContact: contact, URL: "https://wfm.example", LastPoll: now, NextPoll: next, Waiting: "silence", LastError: "manifest refused: version 4 is lower than the accepted 5", RefusedManifest: &control.RefusedManifest{Since: now.Add(-72 * time.Hour), Accepted: 5, Version: 4}},
		Outbox: 2,
		Deployments: []control.Deployment{{
			ID: "id", Name: "app", State: "failed", Reason: "it will be tried again", Since: now, Reported: &control.Reported{State: "installed", At: contact, Waiting: 2}, Unread: []string{"redisHost", "mysqlUser"},
			Error:      &control.Error{Code: "CONTAINER_EXITED", Source: "app", Message: "ended with code 3; its last output:\n\x1b[2Jboom"},
			Components: []control.Component{{Name: "main", State: "pending", Progress: &control.Progress{Object: "image", Done: 1, Total: 2}}},
		}},
		RuntimeError: "containerd is away",
		SelfCheck: &control.SelfCheck{
			Problems:  []control.Advice{{Text: "the poller is stuck", Mend: "wait"}},
			LastPanic: &control.Mistake{Time: now, Object: "poll", Text: "panic: \x1b[2Jx"},
		},
	}}
	got := call(t, "status", "--config", serve(t, a))
	for _, want := range []string{
		"edge-01", "unreachable", "version 4 is lower", "version 4, which the WFM has served for 3 days: it is not greater than the accepted version 5", "`margolite accept-rollback` shows", ", the WFM asked for this delay", "2 waiting for the WFM", "none accepted yet", "containerd is away",
		"contact     the WFM answered 3 days ago", "reported: installed, 3 days ago; 2 reports waiting for the WFM", "id  app  failed", "waits: it will be tried again", "not read by any service: parameters redisHost, mysqlUser", "CONTAINER_EXITED: app: ended with code 3", "\n    [2Jboom\n", "fetching image: 1 B of 2 B",
		"attention   the poller is stuck; fix: wait", "mistake     moments ago, poll: panic: ",
	} {
		expect.Contains(t, got.out, want, "the status")
	}
	expect.True(t, !strings.ContainsRune(got.out, '\x1b'), "what a workload printed reaches the terminal as it is: %q", got.out)
	const obeyed = "\x1b[2J\u009b2J\u202e"
	a.status.WFM.LastError, a.status.RuntimeError, a.status.Deployments[0].Name = obeyed+"said", obeyed, obeyed+"name"
	a.status.Identity.Warnings = []control.Advice{{Text: obeyed, Mend: obeyed}}
	a.syncErr = errors.New(obeyed + "failed")
	for _, got := range []answer{call(t, "status", "--config", serve(t, a)), call(t, "sync", "--config", serve(t, a))} {
		if strings.ContainsAny(got.out+got.err, obeyed[:1]+"\u009b\u202e") || !strings.Contains(got.out+got.err, "[2J2J") {
			t.Errorf("what a server says reaches the terminal as it is: %q %q", got.out, got.err)
		}
	}
	a.status = control.Status{}
	if got := call(t, "status", "--config", serve(t, a)); !strings.Contains(got.out, "not asked yet") || !strings.Contains(got.out, "no deployments") {
		t.Errorf("before the first poll:\n%s", got.out)
	}
}

func TestVersionDocument(t *testing.T) {
	got, people := call(t, "version", "--json").out, call(t, "version").out
	var doc map[string]any
	check(t, json.Unmarshal([]byte(got), &doc))
	expect.Equal(t, slices.Sorted(maps.Keys(doc)), []string{"commit", "revisions", "version"}, "the document has")
	expect.True(t, strings.HasPrefix(people, "margolite ") && strings.Count(people, "\n") == 1, "for people: %q", people)
	for _, r := range margo.Revisions() {
		expect.Contains(t, got, `"`+r.String()+`"`, "the document")
		expect.Contains(t, people, r.String(), "for people")
	}
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	file := configuration(t)
	got := call(t, "check", "--json", "--config", file)
	var lines []struct{ Object, Result, Text, Mend string }
	if err := json.Unmarshal([]byte(got.out), &lines); err != nil {
		t.Fatalf("%+v, %v", got, err)
	}
	last := lines[len(lines)-1]
	if got.code != command.Failed || last.Object != "wfm" || last.Result != "failed" || last.Mend == "" || !strings.Contains(got.err, "checks failed") {
		t.Errorf("code %d, stderr %q, last line %+v", got.code, got.err, last)
	}
	write(t, file, fmt.Sprintf("wfm: {url: https://127.0.0.1:1, certificate: /nonexistent.pem, limits: {names: 64}}\nstate: {dir: %[1]s/state, run: %[1]s}\n", filepath.Dir(file)))
	got = call(t, "check", "--config", file)
	if got.code != command.Failed || !strings.Contains(got.out, "failed   identity: /nonexistent.pem") || !strings.Contains(got.out, "fix: put the file in place") {
		t.Errorf("%+v", got)
	}
	expect.Contains(t, got.out, "warning  configuration: "+file+":1: wfm.limits: has no effect", "a key that is retired")
}

func TestCheckLooksAtKeysAndTrustPolicies(t *testing.T) {
	file := configuration(t)
	dir := filepath.Dir(file)
	g := openpgp.New(t)
	write(t, filepath.Join(dir, "key.asc"), string(g.Public([]string{g.Key("vendor", "ed25519", "never")}, "--armor")))
	key := expect.Value(cosigned.NewKey("ed25519"))(t)
	write(t, filepath.Join(dir, "cosign.pub"), string(expect.Value(key.Public())(t)))
	write(t, filepath.Join(dir, "private.pem"), string(expect.Value(key.Private())(t)))
	check(t, os.Mkdir(filepath.Join(dir, "notation"), 0o700))
	write(t, filepath.Join(dir, "notation", "trustpolicy.json"), `{"version":"1.0","trustPolicies":[]}`)
	says := func(policy, want string) {
		t.Helper()
		in := strings.NewReplacer("DIR", dir).Replace
		write(t, file, in("state: {dir: DIR/state, run: DIR}\npolicy: {"+policy+"}\n"))
		expect.Contains(t, call(t, "check", "--config", file).out, in(want), "check")
	}
	says("keys: [DIR/none]", "warning  policy.keys: cannot read keys: open DIR/none")
	check(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	says("keys: [DIR/pipe]", "warning  policy.keys: cannot read keys: open DIR/pipe: not a regular file")
	says("keys: [DIR/key.asc]", "ok       policy.keys: the keys in DIR/key.asc")
	const images = `policy.imageKeys "registry.example": `
	says("imageKeys: {registry.example: [DIR/private.pem]}, allow: {unsignedImages: false}", "warning  "+images+"cannot read keys: DIR/private.pem: it holds a private key")
	says("imageKeys: {registry.example: [DIR/cosign.pub]}, allow: {unsignedImages: false}", "ok       "+images+"1 keys are valid")
	says("notation: DIR, allow: {unsigned: false}", "warning  policy.notation: cannot read trust policy in DIR")
	says("notation: DIR/notation, allow: {unsigned: false}", "ok       policy.notation: 0 trust policies are valid")
	t.Setenv("PATH", dir)
	says("keys: [DIR/key.asc]", "warning  policy.keys: cannot verify an OpenPGP signature: gpgv is not in PATH")
}

// The versions that git describes, and whether the commit has to be said, too.
func TestVersionSaysTheCommitOnce(t *testing.T) {
	const commit = "5807181d0c4e"
	for version, want := range map[string]bool{
		"5807181": true, "5807181-dirty": true, "v0.2.0-3-g5807181": true, "v0.2.0-3-g5807181-dirty": true,
		"v0.2.0": false, "dev": false, "580": false, "1234567": false,
	} {
		expect.Equal(t, names(version, commit), want, "version %s names commit %s", version, commit)
	}
}

func TestCheckKnowsHowLongPathsOfSocketsAre(t *testing.T) {
	dir := filepath.Dir(configuration(t))
	const suffix = "/containerd/containerd.sock.ttrpc"
	for length, want := range map[int]bool{107 - len(suffix): false, 108 - len(suffix): true} {
		run := filepath.Join(dir, strings.Repeat("r", length-len(dir)-1))
		file := write(t, filepath.Join(dir, "long.yaml"), fmt.Sprintf("state: {dir: %s/state, run: %s}\n", dir, run))
		got := call(t, "check", "--config", file)
		if failed := strings.Contains(got.out, "failed   state.run: the path of socket") && strings.Contains(got.out, fmt.Sprintf("at most %d bytes", 107-len(suffix))); failed != want {
			t.Errorf("a state.run of %d bytes: %+v", length, got)
		}
	}
}

// Where only the rights of root are missing, nothing else is to be mended.
func TestCheckWithoutRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	file := configuration(t)
	check(t, errors.Join(os.Chmod(filepath.Dir(file), 0o755), os.Chmod(file, 0o644)))
	program := exec.Command("/proc/self/exe", "check", "--config", file)
	program.Env = append(os.Environ(), "MARGOLITE_TEST_MAIN=1")
	program.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := program.Output()
	var exit *exec.ExitError
	expect.True(t, errors.As(err, &exit) && exit.ExitCode() == command.Failed, "it ended with %v", err)
	for line := range strings.Lines(string(out)) {
		object, _, _ := strings.Cut(strings.TrimPrefix(line, "failed   "), ":")
		switch object {
		case "state.dir", "state.run", "containers":
			expect.Contains(t, line, "fix: run this command as root", "the fix of a failed check")
		}
	}
	if n := strings.Count(string(out), "run this command as root"); n != 3 {
		t.Errorf("%d things need root, want 3:\n%s", n, out)
	}
}
