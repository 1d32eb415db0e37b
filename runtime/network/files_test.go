package network_test

import (
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
)

// generous is for what has to come, on a machine that does other things as well.
const generous = 2 * time.Minute

func line(addr, name string) []network.Host { return []network.Host{host(addr, name)} }

func text(t testing.TB, path string) string {
	t.Helper()
	return string(expect.Value(os.ReadFile(path))(t))
}

// What a container wrote into its files is never read: 2 GiB would be, by a
// reader of whole files.
func TestHugeFilesAreNotRead(t *testing.T) {
	w := newTown(t)
	paths := w.Paths(w.web)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, path := range []string{paths.Hosts, paths.ResolvConf, paths.Hostname} {
		expect.Check(t, os.Truncate(path, 2<<30))
	}
	expect.Check(t, w.WriteHosts(w.web, line("172.29.0.99", "peer")))
	w.converge()
	next, err := network.New(network.Options{RunDir: w.runDir}) // an agent that starts knows of nothing
	expect.Check(t, err)
	expect.Check(t, next.EnsureSandbox(t.Context(), w.web, line("172.29.0.99", "peer")))
	runtime.ReadMemStats(&after)
	if read := after.TotalAlloc - before.TotalAlloc; read > 64<<20 {
		t.Errorf("%d MiB were allocated", read>>20)
	}
	if got := text(t, paths.Hosts); !strings.HasSuffix(got, "172.29.0.99\tpeer\n") || len(got) > 4096 {
		t.Errorf("hosts has %d bytes", len(got))
	}
	expect.Equal(t, text(t, paths.Hostname), "web\n", "hostname")
}

// Whoever opens a file that somebody has a lease on waits for that one.
func TestLeaseHoldsNobodyUp(t *testing.T) {
	w := newTown(t)
	file := expect.Value(os.OpenFile(w.Paths(w.web).Hosts, os.O_RDWR, 0))(t)
	defer file.Close()
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("needs leases on files:", err)
	}
	begun := time.Now()
	expect.Check(t, w.WriteHosts(w.web, line("172.29.0.99", "peer")))
	expect.Check(t, w.WriteHosts(w.db, line("172.29.0.99", "peer")))
	expect.Check(t, w.EnsureSandbox(t.Context(), w.web, line("172.29.0.99", "peer")))
	if took := time.Since(begun); took > generous {
		t.Errorf("a lease held up others for %v", took)
	}
	expect.Contains(t, text(t, w.Paths(w.db).Hosts), "peer", "hosts file of its neighbour")
	expect.Value(unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_UNLCK))(t)
	expect.Eventually(t, "the file is written after the lease", func() bool {
		w.RefreshFiles()
		return strings.Contains(text(t, w.Paths(w.web).Hosts), "peer")
	})
}

// A file that is filled takes neither the room of others nor that of its own
// neighbours for long.
func TestFilledFileHarmsNobodyElse(t *testing.T) {
	w := newTown(t)
	file, err := os.OpenFile(w.Paths(w.web).Hostname, os.O_WRONLY, 0)
	expect.Check(t, err)
	defer file.Close()
	written := 0
	for chunk := make([]byte, 64<<10); err == nil && written < 16<<20; {
		var n int
		n, err = file.Write(chunk)
		written += n
	}
	expect.True(t, written < 1<<20, "a container could write %d bytes", written)
	many := make([]network.Host, 1000)
	for i := range many {
		many[i] = network.Host{Address: netip.AddrFrom4([4]byte{172, 29, 9, byte(i)}), Names: []string{strings.Repeat("n", 60), strings.Repeat("m", 60)}}
	}
	for _, s := range []network.Sandbox{w.db, w.web} {
		expect.Check(t, w.WriteHosts(s, many))
		if got := len(text(t, w.Paths(s).Hosts)); got < 100<<10 {
			t.Errorf("%s has %d bytes of hosts", s, got)
		}
	}
}
