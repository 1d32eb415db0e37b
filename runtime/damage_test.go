package runtime_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/expect"
)

// wipeRun removes the pins and the files of sandboxes while their containers run.
func (r *rig) wipeRun() {
	r.Helper()
	for _, dir := range []string{"netns", "hosts"} {
		path := filepath.Join(r.run, dir)
		expect.Eventually(r, path+" is removed", func() bool { // what is repaired meanwhile is mounted again
			pins, _ := filepath.Glob(filepath.Join(path, "*"))
			for _, pin := range pins {
				_ = syscall.Unmount(pin, syscall.MNT_DETACH)
			}
			return os.RemoveAll(path) == nil
		})
	}
}

// Containers go on while what connects them is destroyed: they are not replaced,
// not restarted, and reached again.
func TestContainersSurviveDamageToTheNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: damage at every point")
	}
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		stop := r.supervise(e)
		r.apply(e, r.load(e, "shop", `
services:
  web: {image: BUSYBOX, restart: always, command: ["sh", "-c", "echo ok > /tmp/x; httpd -f -p 80 -h /tmp"], ports: ["18140:80"]}
  db: {image: BUSYBOX, restart: always, command: [sleep, '1000']}
  side: {image: BUSYBOX, restart: always, command: [sleep, '1000'], network_mode: "service:db"}
`))
		before := r.containers(e, "shop")
		same := func() bool {
			now := r.containers(e, "shop")
			for name, c := range before {
				if now[name].Pid != c.Pid || now[name].State != runtime.Running || now[name].Astray {
					t.Logf("%s is %+v", name, now[name])
					return false
				}
			}
			return true
		}
		works := func() bool {
			_, err := r.tryInside(before["side"], "wget -q -O - "+before["web"].Address+"/x && wget -q -O - "+r.hostAddress()+":18140/x")
			if err != nil {
				t.Log(err)
			}
			return err == nil
		}
		expect.Eventually(r, "it works", works)
		bridge := func() string {
			for _, name := range bridges(t) {
				return name
			}
			t.Fatal("there is no bridge")
			return ""
		}
		remove := func(names ...string) {
			for _, name := range names {
				_ = exec.Command("ip", "link", "delete", name).Run() // may have gone with its other end
			}
		}
		for _, damage := range []struct {
			name string
			do   func()
		}{
			{"the bridge is deleted", func() { remove(bridge()) }},
			{"all links are deleted", func() {
				for _, link := range ownLinks(t) {
					remove(link)
				}
			}},
			{"the run directory is wiped", r.wipeRun},
			{"the run directory is wiped while no agent runs", func() {
				stop()
				r.wipeRun()
				e = r.engine()
				stop = r.supervise(e)
				<-e.Back()
			}},
		} {
			t.Log(damage.name)
			damage.do()
			expect.Eventually(r, "it works again after "+damage.name, func() bool {
				return works() && pinned(filepath.Join(r.run, "netns", "shop+web+1")) && isThere(filepath.Join(r.run, "hosts", "shop+web+1", "hosts"))
			})
			if !same() {
				t.Fatalf("containers were replaced: %+v, were %+v", r.containers(e, "shop"), before)
			}
		}
		stop()
		expect.Check(t, e.Remove(t.Context(), "shop"))
		r.expectNothingLeft()
	})
}

func pinned(path string) bool {
	var at syscall.Statfs_t
	const nsfs = 0x6e736673
	return syscall.Statfs(path, &at) == nil && int64(at.Type) == nsfs
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
