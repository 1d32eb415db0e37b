package runtime_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/expect"
)

// A workload that may write into its own package is root there.
func TestAWorkloadDoesNotRewriteItsPackage(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	pkg := archive(t, map[string]string{
		"app/compose.yaml": "services: {web: {image: " + r.registry + "/busybox, env_file: [vars], command: [sleep, '1000'], volumes: ['.:/pkg']}}",
		"app/vars":         "WHO=package\n",
		"app/data/x":       "package",
	})
	load := func(e *runtime.Engine) *runtime.Project {
		t.Helper()
		p := expect.Value(e.Load(t.Context(), runtime.Source{Project: "hostile", Strict: true, Package: pkg}))(t)
		expect.Value(e.Stage(t.Context(), p, nil, nil))(t)
		return p
	}
	r.apply(e, load(e))
	before := r.containers(e, "hostile")["web"]
	r.inside(before, `
sed -i 's/{web: {/{evil: {image: busybox, command: [sleep, "1000"]}, web: {privileged: true, pid: host, /' /pkg/compose.yaml
grep -q privileged /pkg/compose.yaml
rm /pkg/vars && ln -s /etc/passwd /pkg/vars
echo WHO=workload > /pkg/.env
echo changed > /pkg/data/x`)

	again := r.engine()
	p := load(again)
	expect.Equal(t, expect.Value(again.Matches(t.Context(), p))(t), true, "loaded project matches")
	r.apply(again, p)
	after := r.containers(again, "hostile")
	if len(after) != 1 || after["web"].ID != before.ID || after["web"].Pid != before.Pid {
		t.Errorf("containers %+v, want %+v alone", after, before)
	}
	expect.Equal(t, p.Compose.Services["web"].Privileged, false, "privileged")
	expect.Equal(t, p.Compose.Services["web"].Environment["WHO"], "package", "environment")
	expect.Equal(t, r.inside(after["web"], "cat /pkg/data/x"), "changed", "what the workload wrote")
}

// Two services of which one has a directory, and the other a part of it.
func TestAWorkloadDoesNotRedirectMounts(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		shared := filepath.Join(t.TempDir(), "shared")
		for _, dir := range []string{"part", "releases/1", "releases/2"} {
			expect.Check(t, os.MkdirAll(filepath.Join(shared, dir), 0o755))
			expect.Check(t, os.WriteFile(filepath.Join(shared, dir, "name"), []byte(dir), 0o600))
		}
		site := filepath.Join(t.TempDir(), "site") // a link of the administrator's own
		expect.Check(t, os.Symlink(shared, site))
		e := r.engine()
		stop := r.supervise(e)
		file := `
services:
  attacker: {image: BUSYBOX, command: [sleep, '1000'], volumes: ["SHARED:/shared"]}
  victim: {image: BUSYBOX, restart: always, command: [sleep, '1000'], volumes: ["SITE/part:/part", "SITE/made/for/it:/made"]}
`
		file = strings.NewReplacer("SHARED", shared, "SITE", site).Replace(file)
		r.apply(e, r.load(e, "redirect", file))
		state := func(service string) runtime.ObservedContainer { return r.containers(e, "redirect")[service] }
		expect.Equal(t, r.inside(state("victim"), "cat /part/name; touch /made/here"), "part", "the part")
		r.runsAgain(e, "redirect", "victim", r.kill(e, "redirect", "victim"))

		r.inside(state("attacker"), "mv /shared/part /shared/aside && ln -s / /shared/part && ls -d /shared/made/for/it")
		killed := r.kill(e, "redirect", "victim")
		expect.Eventually(r, "it ended", func() bool { return state("victim").Pid != killed })
		stop()
		if c := state("victim"); c.State == runtime.Running {
			t.Fatalf("it has %q", r.inside(c, "ls /part"))
		}
		e = r.engine() // as after a restart of the agent, which judged the project before
		p := r.load(e, "redirect", file)
		p.PinSources(map[string]string{site + "/part": shared + "/part", site + "/made/for/it": shared + "/made/for/it"})
		r.refused(e, p, runtime.StartFailed, "a link replaced it: it leads to / now")

		r.inside(state("attacker"), "rm /shared/part && mv /shared/aside /shared/part && rm -r /shared/made && ln -s /etc /shared/made")
		r.refused(e, p, runtime.StartFailed)
		expect.Error(t, expect.ErrorOf(os.Lstat("/etc/for")), os.ErrNotExist, "a directory beyond the link")

		r.inside(state("attacker"), "rm /shared/made")
		r.apply(e, p)
		expect.Equal(t, r.inside(state("victim"), "cat /part/name; ls /made"), "part", "the part")
		expect.Equal(t, expect.Value(filepath.Glob(filepath.Join(r.run, "mounts/*")))(t), nil, "left mounted")

		t.Log("a container made anew goes by what was judged")
		expect.Check(t, e.Remove(t.Context(), "redirect"))
		expect.Check(t, os.Rename(shared+"/part", shared+"/aside"))
		expect.Check(t, os.Symlink("/", shared+"/part"))
		p = r.load(e, "redirect", file)
		p.PinSources(map[string]string{site + "/part": shared + "/part", site + "/made/for/it": shared + "/made/for/it"})
		r.refused(e, p, runtime.StartFailed)
	})
}
