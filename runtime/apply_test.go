package runtime_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
)

// shop is a front end that asks a back end by its name, and a back end that
// keeps a volume.
const shop = `
services:
  web:
    image: BUSYBOX
    command: ["sh", "-c", "mkdir -p /www; while :; do wget -qO /www/new http://db:8000/answer && cp /www/new /www/index.html; sleep 0.2; done & exec httpd -f -p 80 -h /www"]
    environment:
      COLOUR: COLOUR-OF-WEB
    ports: ["18080:80"]
    depends_on: [db]
    restart: always
  db:
    image: BUSYBOX
    command: ["sh", "-c", "test -e /data/answer || echo ANSWER > /data/answer; exec httpd -f -p 8000 -h /data"]
    volumes: ["data:/data"]
    restart: always
volumes:
  data: {}
`

func TestProjectFromInstallationToRemoval(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		host := r.hostAddress()

		p := r.load(e, "shop", shop)
		expect.Check(t, e.Apply(t.Context(), p, runtime.ApplyOptions{Settle: time.Second}))

		t.Log("the front end reaches the back end by name, the host reaches the published port")
		for _, address := range []string{host, "127.0.0.1"} {
			expect.Eventually(r, "an answer at "+address, func() bool { return get(net.JoinHostPort(address, "18080")) == "ANSWER" })
		}
		before := r.containers(e, "shop")
		expect.Require(t, before["web"].State == runtime.Running && before["db"].State == runtime.Running, "not running: %+v", before)
		if up := time.Since(before["web"].Started); up < time.Second {
			t.Errorf("it settled after %s, want a second at least", up)
		}
		expect.Equal(t, len(r.shims()), 1, "shims")

		t.Log("applying it again changes nothing")
		r.onStep = func(step string) { t.Errorf("step %q of an apply that has nothing to do", step) }
		expect.Equal(t, expect.Value(r.engine().Matches(t.Context(), p))(t), true, "project matches what runs")
		r.onStep = nil
		r.apply(e, p)
		if again := r.containers(e, "shop"); again["web"].Pid != before["web"].Pid || again["db"].Pid != before["db"].Pid {
			t.Error("processes changed")
		}

		t.Log("an update recreates only what changed, and keeps the volume")
		expect.Check(t, os.WriteFile(filepath.Join(r.state, "volumes/shop/data/answer"), []byte("KEPT\n"), 0o644))
		p = r.load(e, "shop", strings.ReplaceAll(shop, "COLOUR-OF-WEB", "blue"))
		expect.Equal(t, expect.Value(e.Matches(t.Context(), p))(t), false, "update matches what runs")
		r.apply(e, p)
		after := r.containers(e, "shop")
		expect.Equal(t, after["db"].Pid, before["db"].Pid, "process of the back end")
		expect.Equal(t, after["web"].ID == before["web"].ID, false, "the front end is the same")
		expect.Equal(t, after["web"].Address, before["web"].Address, "address of the front end")
		expect.Contains(t, r.environment(after["web"]), "COLOUR=blue\n", "environment")
		expect.Eventually(r, "the kept answer", func() bool { return get(net.JoinHostPort(host, "18080")) == "KEPT" })

		t.Log("an update of the back end keeps the content of its volume")
		p = r.load(e, "shop", strings.ReplaceAll(shop, "exec httpd -f -p 8000", "exec httpd -f -p 8000 -u 0:0"))
		r.apply(e, p)
		expect.Eventually(r, "the kept answer", func() bool { return get(net.JoinHostPort(host, "18080")) == "KEPT" })

		t.Log("a service that leaves takes its sandbox along, one that comes gets its own")
		one, _, _ := strings.Cut(shop, "  db:")
		one = strings.Replace(one, "    depends_on: [db]\n", "", 1)
		r.apply(e, r.load(e, "shop", one))
		if c := r.containers(e, "shop"); len(c) != 1 || c["web"].State != runtime.Running {
			t.Errorf("after one service left: %+v", c)
		}
		expect.Equal(t, len(expect.Value(filepath.Glob(filepath.Join(r.run, "netns/*")))(t)), 1, "namespaces")
		r.apply(e, r.load(e, "shop", shop))
		expect.Eventually(r, "the kept answer", func() bool { return get(net.JoinHostPort(host, "18080")) == "KEPT" })
		expect.Equal(t, len(expect.Value(filepath.Glob(filepath.Join(r.state, "projects/shop/*")))(t)), 1, "extracted packages")

		t.Log("a removal leaves the volume and nothing else")
		expect.Check(t, e.Remove(t.Context(), "shop"))
		r.expectNothingLeft()
		expect.Equal(t, get(net.JoinHostPort(host, "18080")), "", "port that is published no longer")
		expect.Equal(t, r.volume("shop/data/answer"), "KEPT\n", "volume")
		expect.Error(t, e.Remove(t.Context(), "shop"), nil, "removing it again")
		expect.Error(t, e.Remove(t.Context(), "neverknown"), nil, "removing what never was")
	})
}

func TestFailuresSayWhatFailed(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		tests := []struct {
			name, file string
			code       runtime.Code
			object     string
			text       string
		}{
			{
				"PKG-13 a service that exits with a code fails at once, with its last words",
				`services: {job: {image: BUSYBOX, command: ["sh", "-c", "echo last words; exit 3"]}}`,
				runtime.Exited, "job", "last words",
			},
			{
				"PKG-13 also when it would be restarted",
				`services: {job: {image: BUSYBOX, restart: always, command: ["sh", "-c", "sleep 0.2; exit 4"]}}`,
				runtime.Exited, "job", "code 4",
			},
			{
				"PKG-11 a service that has to run and keeps ending well",
				`services: {job: {image: BUSYBOX, restart: always, command: ["true"]}}`,
				runtime.Exited, "job", "ended 4 times",
			},
			{
				"a command that does not exist",
				`services: {app: {image: BUSYBOX, command: ["/no/such/program"]}}`,
				runtime.StartFailed, "app", "no such file",
			},
		}
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				limited, cancel := context.WithTimeout(t.Context(), 4*patience) // one that goes on fails by its code
				defer cancel()
				err := e.Apply(limited, r.load(e, "fails", test.file), runtime.ApplyOptions{Settle: time.Hour})
				var typed *runtime.Error
				expect.Require(t, errors.As(err, &typed), "got %v", err)
				if typed.Code != test.code || typed.Object != test.object || !strings.Contains(err.Error(), test.text) {
					t.Errorf("got code %q, object %q, %v", typed.Code, typed.Object, err)
				}
				expect.Check(t, e.Remove(t.Context(), "fails"))
				r.expectNothingLeft()
			})
		}
	})
}

func TestOneShotServicesRunOnce(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		file := `
services:
  setup: {image: BUSYBOX, command: ["sh", "-c", "echo ran >> /data/log"], volumes: ["data:/data"]}
  app: {image: BUSYBOX, environment: {N: "0"}, depends_on: [setup]}
volumes: {data: {}}
`
		ran := func() int { return strings.Count(r.volume("once/data/log"), "ran") }
		p := r.load(e, "once", file)
		expect.Check(t, e.Apply(t.Context(), p, runtime.ApplyOptions{Settle: 500 * time.Millisecond}))
		if job := r.containers(e, "once")["setup"]; job.State != runtime.Done || job.Restarts != 0 {
			t.Errorf("the job is %q after %d restarts", job.State, job.Restarts)
		}
		r.apply(r.engine(), p)
		r.apply(e, r.load(e, "once", strings.Replace(file, `"0"`, `"1"`, 1)))
		expect.Equal(t, ran(), 1, "runs of the job")
		expect.Equal(t, expect.Value(e.Matches(t.Context(), p))(t), false, "former project matches")
		r.reboot(e)
		e = r.engine()
		r.supervise(e)
		expect.Eventually(r, "the app is back", func() bool { return r.containers(e, "once")["app"].State == runtime.Running })
		expect.Equal(t, ran(), 1, "runs of the job")
	})
}

func TestContainersOfOthersAreLeftAlone(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	r.apply(e, r.load(e, "ours", `services: {web: {image: BUSYBOX}}`))
	foreign := containers.Container{
		ID: "foreign", Labels: map[string]string{"com.docker.compose.project": "ours", "com.docker.compose.service": "web"},
		Spec:    &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Spec", Value: []byte(`{"ociVersion":"1.2.0"}`)},
		Runtime: containers.RuntimeInfo{Name: "io.containerd.runc.v2"},
	}
	ctx, service := containerdtest.Context(t), r.client.ContainerService()
	expect.Value(service.Create(ctx, foreign))(t)
	expect.Check(t, e.Remove(t.Context(), "ours"))
	expect.Error(t, service.Delete(ctx, foreign.ID), nil, "deleting a container without our labels, which stays")
}

func TestApplyEndsWithItsContext(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	p := r.load(e, "late", `services: {web: {image: BUSYBOX}}`)
	ctx, cancel := context.WithCancel(t.Context())
	err := e.Apply(ctx, p, runtime.ApplyOptions{Settle: time.Hour, Notify: func(event runtime.Event) {
		if event.Step == runtime.Settling {
			cancel()
		}
	}})
	expect.Error(t, err, context.Canceled, "error")
	short, done := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer done()
	expect.Equal(t, runtime.CodeOf(e.Apply(short, p, runtime.ApplyOptions{Settle: time.Hour})), runtime.Timeout, "code")
}
