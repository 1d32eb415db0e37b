package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

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
		expect.Check(t, os.WriteFile(base, []byte(composeBase), 0o600))
		expect.Check(t, os.WriteFile(over, []byte("services: {web: {environment: {GREETING: over}}}"), 0o600))
		t.Setenv("REGISTRY", r.Registry.Address())
		expect.Check(t, r.Push(t.Context(), "margolite/tools", "1.0.0", programs.tools))
		r.keepsImages = true
		r.running()
		for _, mode := range []string{"agent", "alone"} {
			if mode == "alone" {
				r.stop()
			}
			project := func(args ...string) string {
				t.Helper()
				out, err := r.margolite(append([]string{"compose", "-p", "office", "-f", base, "-f", over}, args...)...)
				expect.Require(t, err == nil, "%s: %v", mode, err)
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
			expect.Equal(t, fmt.Sprint(names()), "map[counter:1 web:1 worker:3]", "%s: services", mode)
			if a := r.answers(8095); a.Greeting != "over" || a.Visit != 1 {
				t.Errorf("%s: the application says %+v", mode, a)
			}
			project("--profile", "debug", "up", "-d", "--scale", "worker=1")
			expect.Equal(t, fmt.Sprint(names()), "map[counter:1 debug:1 web:1 worker:1]", "%s: services with the profile", mode)
			if mode == "agent" { // which answers those who ask a nameserver and no file
				plant.Require(r.t, "nslookup web", func() error {
					_, err := r.margolite("compose", "-p", "office", "exec", "-T", "debug", "busybox", "nslookup", "-type=a", "web")
					return err
				})
			}
			if out := project("exec", "-T", "debug", "wget", "-qO-", "http://web:8080/"); !strings.Contains(out, "over from plant A, visit 2") {
				t.Errorf("%s: wget says %q", mode, out)
			}
			cmd := r.Command(t.Context(), "compose", "-p", "office", "exec", "-T", "--index", "1", "worker", "sh", "-c", "cat; exit 3")
			cmd.Stdin = strings.NewReader("x")
			out, _ := cmd.CombinedOutput() // how it ended is its exit code
			if code := cmd.ProcessState.ExitCode(); code != 3 || string(out) != "x" {
				t.Errorf("%s: exec ended with %d, and said %q", mode, code, out)
			}
			expect.Contains(t, project("logs", "web"), "serving", "%s: logs say", mode)
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
