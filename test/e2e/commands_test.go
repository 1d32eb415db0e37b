package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
)

// said runs the command line with an input, and gives its exit code and all that
// it said.
func (r *rig) said(input string, args ...string) (code int, text string) {
	r.t.Helper()
	cmd := r.Command(r.t.Context(), args...)
	cmd.Stdin = strings.NewReader(input)
	out, _ := cmd.CombinedOutput() // how it ended is its exit code
	return cmd.ProcessState.ExitCode(), string(out)
}

// Commands run in workloads, with their input and exit code; logs are followed
// over the replacement of a container; what is kept goes when it is told to.
func TestCommandsForDeployments(t *testing.T) {
	long(t, "commands")
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		d := r.application(labID, "1.0.0", labFile, nil)
		r.install(d)
		r.answers(8090)

		if code, out := r.said("", "exec", labID, "tools", "--", "sh", "-c", "exit 7"); code != 7 {
			t.Errorf("a command that ends with 7 ended with %d: %s", code, out)
		}
		if code, out := r.said("spam\n", "exec", "-e", "COLOUR=red", labID, "tools", "--", "sh", "-c", "cat; echo $COLOUR"); code != 0 || out != "spam\nred\n" {
			t.Errorf("it said %q, and ended with %d", out, code)
		}
		if code, out := r.said("", "exec", labID, "nonesuch", "--", "sh"); code != 1 || !strings.Contains(out, "nonesuch") {
			t.Errorf("a service that is not there: %d, %q", code, out)
		}

		// A shim of somebody else's writes no times, and follows all the same.
		timed := r.Containerd() == 0
		follow, ended := r.follow("logs", "-f", "-t", labID, "web")
		first := follow("serving")
		d.Parameters["GREETING"] = "Servus"
		between := time.Now()
		r.install(d)
		second := follow("serving")
		for _, line := range []string{first, second} {
			if stamp, _, ok := cutTime(line); timed && (!ok || time.Since(stamp) > 5*time.Minute) {
				t.Errorf("line %q has no time", line)
			}
		}
		ended()
		out, err := r.margolite("logs", "--since", between.Format(time.RFC3339Nano), "-t", labID, "web")
		check(t, err)
		if n := strings.Count(out, "serving"); timed && n != 1 {
			t.Errorf("since the update the service began to serve %d times: %q", n, out)
		}

		r.await(labID, margo.Removed, r.remove(labID))
		out, err = r.margolite("prune", "--volumes", "--dry-run", "--json")
		check(t, err)
		items := decode[[]control.Unneeded](t, out)
		if len(items) != 1 || items[0].Kind != control.UnneededVolume || items[0].Name != "data" {
			t.Errorf("prune would remove %s, want the volume", out)
		}
		if code, out := r.said("n\n", "prune", "--volumes"); code == 0 {
			t.Errorf("prune did not ask: %s", out)
		}
		if code, out := r.said("", "prune", "--volumes", "--yes"); code != 0 || !strings.Contains(out, "removed 1 of 1") {
			t.Errorf("prune ended with %d: %s", code, out)
		}
		if left, _ := filepath.Glob(filepath.Join(r.StateDir(), "volumes", "*", "*")); len(left) > 0 {
			t.Errorf("volumes %v are still there", left)
		}
	})
}

// cutTime reads the time that a line of a log has, behind the name of its
// container if there is one.
func cutTime(line string) (stamp time.Time, rest string, ok bool) {
	if _, after, prefixed := strings.Cut(line, "| "); prefixed {
		line = after
	}
	text, rest, ok := strings.Cut(line, " ")
	stamp, err := time.Parse(time.RFC3339Nano, text)
	return stamp, rest, ok && err == nil
}

// follow starts a command that goes on. next waits for a line with a word in
// it; end interrupts it.
func (r *rig) follow(args ...string) (next func(word string) string, end func()) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
	cmd := r.Command(ctx, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.StdoutPipe()
	check(r.t, err)
	check(r.t, cmd.Start())
	lines := bufio.NewScanner(out)
	next = func(word string) string {
		r.t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), word) {
				return lines.Text()
			}
		}
		r.t.Fatalf("margolite %s ended without a line with %q", strings.Join(args, " "), word)
		return ""
	}
	return next, func() {
		cancel()
		_ = cmd.Wait() // it was interrupted
	}
}

const composeBase = `
services:
  web:
    image: ${REGISTRY}/margolite/demoapp:1.0.0
    command: [web]
    environment: {GREETING: base}
    ports: ["8095:8080"]
    depends_on: [counter]
  counter:
    image: ${REGISTRY}/margolite/demoapp:1.0.0
    command: [counter]
    volumes: ["data:/data"]
  worker:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "100000"]
    stop_signal: SIGKILL
  debug:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "100000"]
    stop_signal: SIGKILL
    profiles: [debug]
volumes: {data: {}}
`

// margolite compose is as docker compose, through the agent and without one.
func TestComposeLikeDocker(t *testing.T) {
	long(t, "commands")
	onBackends(t, func(t *testing.T, r *rig) {
		dir := t.TempDir()
		base, over := filepath.Join(dir, "base.yaml"), filepath.Join(dir, "over.yaml")
		check(t, os.WriteFile(base, []byte(composeBase), 0o600))
		check(t, os.WriteFile(over, []byte("services: {web: {environment: {GREETING: over}}}"), 0o600))
		t.Setenv("REGISTRY", r.Registry.Address())
		check(t, r.Push(t.Context(), "margolite/tools", "1.0.0", programs.tools))
		r.keepsImages = true
		r.running()
		for _, mode := range []string{"agent", "alone"} {
			if mode == "alone" {
				r.stop()
			}
			project := func(args ...string) string {
				t.Helper()
				out, err := r.margolite(append([]string{"compose", "-p", "office", "-f", base, "-f", over}, args...)...)
				if err != nil {
					t.Fatalf("%s: %v", mode, err)
				}
				return out
			}
			names := func() map[string]int {
				n := map[string]int{}
				for _, s := range decode[[]control.Service](t, project("ps", "--json")) {
					if s.State == "running" {
						n[s.Name]++
					}
				}
				return n
			}
			project("pull")
			project("up", "-d", "--scale", "worker=3")
			if n := names(); fmt.Sprint(n) != "map[counter:1 web:1 worker:3]" {
				t.Errorf("%s: services are %v", mode, n)
			}
			if a := r.answers(8095); a.Greeting != "over" || a.Visit != 1 {
				t.Errorf("%s: the application says %+v", mode, a)
			}
			project("--profile", "debug", "up", "-d", "--scale", "worker=1")
			if n := names(); fmt.Sprint(n) != "map[counter:1 debug:1 web:1 worker:1]" {
				t.Errorf("%s: services with the profile are %v", mode, n)
			}
			if out := project("exec", "-T", "debug", "wget", "-qO-", "http://web:8080/"); !strings.Contains(out, "over from plant A, visit 2") {
				t.Errorf("%s: wget says %q", mode, out)
			}
			if code, out := r.said("x", "compose", "-p", "office", "exec", "-T", "--index", "1", "worker", "sh", "-c", "cat; exit 3"); code != 3 || out != "x" {
				t.Errorf("%s: exec ended with %d, and said %q", mode, code, out)
			}
			var parsed map[string]any
			if out := project("config", "--json"); json.Unmarshal([]byte(out), &parsed) != nil {
				t.Errorf("%s: config is no JSON: %s", mode, out)
			}
			project("down")
			if volumes, _ := filepath.Glob(filepath.Join(r.StateDir(), "volumes", "office", "data")); len(volumes) != 1 {
				t.Errorf("%s: down took the volume along", mode)
			}
			project("down", "-v")
			if volumes, _ := filepath.Glob(filepath.Join(r.StateDir(), "volumes", "office", "*")); len(volumes) != 0 {
				t.Errorf("%s: down -v left %v", mode, volumes)
			}
			r.isAsBefore(t.Context())
		}
	})
}
