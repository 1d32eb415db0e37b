package e2e

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/wfmsim"
)

// sleepFile is one service whose command tells its version.
const sleepFile = `
services:
  main:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "%d"]
    stop_signal: SIGKILL
    restart: always
`

// neverHealthy keeps it from ever being installed.
const neverHealthy = "    healthcheck: {test: [CMD, \"false\"], interval: 1s, start_period: 24h}\n"

// Two installations hang, for as long as the WFM likes. An operator rolls another
// deployment back, the WFM removes a third, a fourth comes back after its process
// was killed, a fifth is updated, and one of those that hang goes when the WFM does
// not want it any more.
func TestInstallationsThatHangHoldUpNobody(t *testing.T) {
	long(t, "many deployments")
	onBackends(t, func(t *testing.T, r *rig) {
		id := func(n int) string { return fmt.Sprintf("150a7e00-8912-45f4-a523-%012d", n) }
		const back, removed, killed, updated, hangs = 0, 1, 2, 3, 4
		version := func(n, major int, more string) wfmsim.Deployment {
			return r.application(id(n), fmt.Sprintf("%d.0.0", major), fmt.Sprintf(sleepFile, 1000+major)+more, nil)
		}
		// runs waits until the service of a deployment runs in this version, and not as
		// the process before.
		runs := func(n, major, before int) (pid int) {
			t.Helper()
			r.eventually(fmt.Sprintf("version %d of deployment %d runs", major, n), func() error {
				services, err := r.servicesOnce(id(n))
				if err != nil {
					return err
				}
				pid = int(services["main"].Pid)
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if pid == 0 || pid == before || !bytes.Contains(line, fmt.Appendf(nil, "%d", 1000+major)) {
					return fmt.Errorf("process %d is %q", pid, line)
				}
				return nil
			})
			return pid
		}

		r.running()
		for n := range hangs {
			r.install(version(n, 1, ""))
		}
		r.install(version(back, 2, ""))
		for n := hangs; n < hangs+2; n++ {
			d := version(n, 9, neverHealthy)
			d.Components[0].Timeout = "999999m0s"
			published := r.publish(d)
			r.await(d.ID, margo.Installing, published.Version)
			runs(n, 9, 0)
		}

		if out, err := r.margolite("rollback", id(back), "--yes"); err != nil {
			t.Fatal(out, err)
		}
		runs(back, 1, 0)
		r.await(id(removed), margo.Removed, r.remove(id(removed)))
		pid := runs(killed, 1, 0)
		check(t, syscall.Kill(pid, syscall.SIGKILL))
		runs(killed, 1, pid)
		published := r.publish(version(updated, 2, ""))
		r.await(id(updated), margo.Installed, published.Version)
		runs(updated, 2, 0)
		r.await(id(hangs), margo.Removed, r.remove(id(hangs)))
	})
}
