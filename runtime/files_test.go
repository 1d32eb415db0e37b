package runtime_test

import (
	gort "runtime"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime"
)

// A container is root in the files that it is given, and nobody else's concern:
// an agent that reads them whole would hold 6 GiB here.
func TestHugeFilesOfAContainer(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		stop := r.supervise(e)
		r.apply(e, r.load(e, "hog", `services: {hog: {image: BUSYBOX, restart: always, command: [sleep, '1000']}}`))
		r.inside(r.containers(e, "hog")["hog"], "for f in hosts resolv.conf hostname; do truncate -s 2G /etc/$f; done")
		full, err := r.tryInside(r.containers(e, "hog")["hog"], "dd if=/dev/zero of=/etc/hostname bs=64k count=160 conv=notrunc")
		if err == nil {
			t.Errorf("a container filled the run directory: %s", full)
		}

		var before, after gort.MemStats
		gort.ReadMemStats(&before)
		file := `
networks: {default: {name: hog_default, external: true}}
services: {peer: {image: BUSYBOX, restart: always, command: [sleep, '1000']}}`
		r.apply(e, r.load(e, "other", file))
		stop()
		e = r.engine()
		defer r.supervise(e)()
		<-e.Back()
		gort.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 512<<20 {
			t.Errorf("%d MiB were allocated", used>>20)
		}
		if c := r.containers(e, "other")["peer"]; c.State != runtime.Running {
			t.Errorf("its neighbour is %s", c.State)
		}
		r.eventually("the hosts of the container are right", func() bool {
			hosts := r.inside(r.containers(e, "hog")["hog"], "head -c 4096 /etc/hosts")
			return strings.Contains(hosts, "other-peer-1")
		})
	})
}
