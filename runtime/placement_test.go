package runtime_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
)

// replicas are the containers of a project by replica.
func (r *rig) replicas(e *runtime.Engine, project string) map[string]runtime.ObservedContainer {
	r.Helper()
	p := expect.Value(e.ObserveProject(r.Context(), project))(r)
	all := make(map[string]runtime.ObservedContainer)
	for _, c := range p.Containers {
		all[c.Replica().String()] = c
	}
	return all
}

func TestScaledServices(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		load := func(n int) *runtime.Project {
			return r.change(e, "scaled", `
services:
  web: {image: BUSYBOX, command: ["httpd", "-f", "-p", "80"], depends_on: [db]}
  db: {image: BUSYBOX}
`, func(s map[string]*compose.Service) {
				s["web"].Replicas = n
				s["web"].Ports = []compose.Port{{HostPort: 18100, LastPort: 18103, ContainerPort: 80, Protocol: "tcp"}, {ContainerPort: 80, Protocol: "tcp"}}
			})
		}
		r.apply(e, load(3))
		three := r.replicas(e, "scaled")
		var ports []string
		addresses := map[string]bool{}
		for _, c := range three {
			addresses[c.Address] = true
			for _, p := range c.Ports {
				host, _, _ := strings.Cut(p, "->")
				ports = append(ports, strings.Replace(host, "0.0.0.0", "127.0.0.1", 1))
			}
		}
		slices.Sort(ports)
		if len(three) != 4 || len(addresses) != 4 || len(ports) != 6 || len(slices.Compact(slices.Clone(ports))) != 6 {
			t.Fatalf("replicas %v, ports %q", three, ports)
		}
		for _, want := range []string{"127.0.0.1:18100", "127.0.0.1:18101", "127.0.0.1:18102"} {
			expect.Equal(t, slices.Contains(ports, want), true, "%s is among %q", want, ports)
		}
		for _, p := range ports {
			expect.Eventually(r, "an answer at "+p, func() bool { return answers(p) })
		}

		t.Log("fewer: the highest numbers go, the others stay as they are")
		r.apply(e, load(1))
		one := r.replicas(e, "scaled")
		if len(one) != 2 || one["web-1"].Pid != three["web-1"].Pid || one["db-1"].Pid != three["db-1"].Pid {
			t.Errorf("one replica: %v", one)
		}
		t.Log("more again: what was kept stays where it was")
		r.apply(e, load(2))
		if two := r.replicas(e, "scaled"); len(two) != 3 || !slices.Equal(two["web-1"].Ports, three["web-1"].Ports) || two["web-1"].Pid != three["web-1"].Pid {
			t.Errorf("two replicas: %v", two)
		}
		r.apply(e, load(0))
		expect.Equal(t, len(r.replicas(e, "scaled")), 1, "replicas")
		expect.Check(t, e.Remove(t.Context(), "scaled"))
		r.expectNothingLeft()
	})
}

func TestNamesOfContainersAreTaken(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	r.apply(e, r.load(e, "fixed", `services: {db: {image: BUSYBOX, container_name: the-db}}`))
	for _, taken := range []string{"the-db", "fixed-db-1"} {
		p := r.load(e, "other", `services: {web: {image: BUSYBOX, container_name: `+taken+`}}`)
		r.refused(e, p, runtime.Conflict, "service db of project fixed")
	}
}

func TestNetworksSharedByProjects(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		stop := r.supervise(e)
		load := func(project, service string, external bool) *runtime.Project {
			p := r.load(e, project, `services: {`+service+`: {image: BUSYBOX, command: ["httpd", "-f", "-p", "80"]}}`)
			p.Compose.Networks = map[string]*compose.Network{"shared": {Name: "plant", External: external}}
			p.Compose.Services[service].Attached = []compose.Attachment{{Network: "shared"}}
			return p
		}
		r.refused(e, load("user", "client", true), runtime.NotFound)
		r.apply(e, load("owner", "server", false))
		r.apply(e, load("user", "client", true))
		server, client := r.containers(e, "owner")["server"], r.containers(e, "user")["client"]
		if server.Sandbox.Attached[0].Network.Name != "plant" || client.Sandbox.Attached[0].Network.Name != "plant" || server.Address == client.Address {
			t.Errorf("server at %v, client at %v", server.Sandbox.Attached, client.Sandbox.Attached)
		}
		reach := func(from runtime.ObservedContainer, to string) {
			t.Helper()
			expect.Eventually(r, from.Service+" reaches "+to, func() bool {
				_, err := r.tryInside(from, "echo x | nc -w 2 "+to+" 80")
				return err == nil
			})
		}
		reach(client, "server")
		reach(server, "client")
		third := load("third", "web", false)
		third.Joins = func(network, of string) error { return fmt.Errorf("%s is that of %s", network, of) }
		r.refused(e, third, runtime.Conflict, "plant is that of owner")

		t.Log("after a reboot")
		stop()
		r.reboot(e)
		e = r.engine()
		stop = r.supervise(e)
		expect.Eventually(r, "both run", func() bool {
			server, client = r.containers(e, "owner")["server"], r.containers(e, "user")["client"]
			return server.State == runtime.Running && client.State == runtime.Running
		})
		reach(client, "server")
		reach(server, "client")

		t.Log("it stays until its last user goes")
		expect.Check(t, e.Remove(t.Context(), "owner"))
		expect.Equal(t, len(bridges(t)), 1, "bridges")
		expect.Eventually(r, "the name is gone", func() bool { return !strings.Contains(r.inside(client, "cat /etc/hosts"), "server") })
		r.apply(e, load("owner", "server", true))
		reach(client, "server")
		for _, project := range []string{"user", "owner", "third"} {
			expect.Check(t, e.Remove(t.Context(), project))
		}
		stop()
		r.expectNothingLeft()
	})
}

func bridges(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(ownLinks(t), func(name string) bool { return !strings.HasPrefix(name, "mgl-") })
}

func TestServicesThatShareANetworkNamespace(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		stop := r.supervise(e)
		r.apply(e, r.load(e, "share", `
services:
  main: {image: BUSYBOX, restart: always, command: ["httpd", "-f", "-p", "80"], ports: ["18110:80"]}
  side: {image: BUSYBOX, restart: always, depends_on: [main], network_mode: "service:main"}
`))
		const guest = `services: {spy: {image: BUSYBOX, restart: always, network_mode: "container:share-main-1"}}`
		r.apply(e, r.load(e, "guest", guest))
		same := func() bool {
			main, side, spy := r.containers(e, "share")["main"], r.containers(e, "share")["side"], r.containers(e, "guest")["spy"]
			if main.State != runtime.Running || side.State != runtime.Running || spy.State != runtime.Running {
				return false
			}
			for _, c := range []runtime.ObservedContainer{side, spy} {
				if _, err := r.tryInside(c, "echo x | nc -w 2 127.0.0.1 80"); err != nil {
					return false
				}
			}
			return !side.Astray && !spy.Astray && !main.Astray
		}
		expect.Eventually(r, "they share their network", same)

		t.Log("after a reboot")
		stop()
		r.reboot(e)
		e = r.engine()
		stop = r.supervise(e)
		expect.Eventually(r, "they share their network", same)

		t.Log("one whose host goes waits, and goes on when it comes back")
		expect.Check(t, e.Remove(t.Context(), "share"))
		r.refused(e, r.load(e, "late", guest), runtime.NotFound)
		for _, project := range []string{"guest", "late"} {
			expect.Check(t, e.Remove(t.Context(), project))
		}
		stop()
		r.expectNothingLeft()
	})
}

func TestAFailedUpdateLeavesNoSecondContainer(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	file := `
services:
  web: {image: BUSYBOX, environment: {N: "1"}, depends_on: [db]}
  db: {image: BUSYBOX, environment: {N: "1"}}
`
	r.apply(e, r.load(e, "tidy", file))
	before := r.replicas(e, "tidy")
	bad := strings.Replace(strings.ReplaceAll(file, `"1"`, `"2"`), "db: {image: BUSYBOX", "db: {image: BUSYBOX, command: [/nope]", 1)
	r.refused(e, r.load(e, "tidy", bad), runtime.StartFailed)
	after := r.containers(e, "tidy") // fails when a service has two
	expect.Equal(t, after["web"].Pid, before["web-1"].Pid, "process of web")
	expect.Equal(t, after["db"].ID, before["db-1"].ID, "container of db")
	r.supervise(e)
	expect.Eventually(r, "the former one is back", func() bool { return r.containers(e, "tidy")["db"].State == runtime.Running })
}
