package network_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
)

// repairing repairs the town until the test ends.
func (w *town) repairing(lost func()) {
	w.t.Helper()
	ctx, stop := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, lost) }()
	w.t.Cleanup(func() {
		stop()
		expect.Check(w.t, <-ended)
		expect.Equal(w.t, hasTable(w.t, "margolite_alive"), false, "the table of the watcher outlives it")
	})
}

// outer is the host's end of the link of a namespace.
func outer(t testing.TB, netns string) string {
	t.Helper()
	var inner, all []struct {
		IfIndex int
		IfName  string
		Peer    int `json:"link_index"`
	}
	expect.Check(t, json.Unmarshal([]byte(ipInside(t, netns, "-json link show eth0")), &inner))
	expect.Check(t, json.Unmarshal([]byte(ip(t, "-json link show")), &all))
	for _, link := range all {
		if link.IfIndex == inner[0].Peer {
			return link.IfName
		}
	}
	t.Fatal("eth0 has no other end")
	return ""
}

// Nobody calls anything: the kernel tells of the damage.
func TestDamageIsNoticed(t *testing.T) {
	for name, damage := range map[string]func(w *town){
		"bridge down":    func(w *town) { ip(w.t, "link set %s down", w.shop.Bridge) },
		"bridge deleted": func(w *town) { ip(w.t, "link del %s", w.shop.Bridge) },
		"address of the bridge removed": func(w *town) {
			ip(w.t, "address del %s/24 dev %s", w.shop.Gateway, w.shop.Bridge)
		},
		"address6 of the bridge removed": func(w *town) {
			ip(w.t, "address del %s/64 dev %s", w.shop.Gateway6, w.shop.Bridge)
		},
		"route removed":                    func(w *town) { ip(w.t, "route del %s dev %s", w.shop.Subnet, w.shop.Bridge) },
		"route6 removed":                   func(w *town) { ip(w.t, "-6 route del %s dev %s", w.shop.Subnet6, w.shop.Bridge) },
		"host's end of a link deleted":     func(w *town) { ip(w.t, "link del %s", outer(w.t, w.webNS)) },
		"host's end of a link down":        func(w *town) { ip(w.t, "link set %s down", outer(w.t, w.webNS)) },
		"host's end of a link taken away":  func(w *town) { ip(w.t, "link set %s nomaster", outer(w.t, w.webNS)) },
		"container's end of a link gone":   func(w *town) { ipInside(w.t, w.webNS, "link del eth0") },
		"forwarding disabled":              func(w *town) { setSysctl(w.t, "net/ipv4/ip_forward", "0") },
		"forwarding of IPv6 switched off":  func(w *town) { setSysctl(w.t, "net/ipv6/conf/all/forwarding", "0") },
		"everything deleted, bridge first": func(w *town) { ip(w.t, "link del %s", w.shop.Bridge); ip(w.t, "link del %s", outer(w.t, w.webNS)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newDualStack(t, network.Network{})
			w.publish(port(w.web, "tcp", 8080, 80))
			inside(t, w.webNS, func() { serve(t, "", "tcp", ":80", "web") })
			works := func() bool {
				return strings.HasPrefix(ask(t, w.outside, "tcp", at(hostAddr, 8080), silence), "web ") &&
					strings.HasPrefix(ask(t, w.dbNS, "tcp", at(w.web.Attached[0].Address6, 80), silence), "web ") &&
					strings.HasPrefix(ask(t, "", "tcp", at(w.web.Attached[0].Address6, 80), silence), "web ")
			}
			expect.Eventually(t, "it works", works)
			w.repairing(func() { t.Error("a namespace was said to be lost") })
			damage(w)
			expect.Eventually(t, "it works again", func() bool {
				return sysctl(t, "net/ipv6/conf/all/forwarding") == "1" && sysctl(t, "net/ipv4/ip_forward") == "1" && works()
			})
		})
	}
}

// Packets of containers that run are never too large for the way out.
func TestMTUFollowsTheWayOut(t *testing.T) {
	w := newTown(t)
	w.converge()
	w.repairing(func() { t.Error("a namespace was said to be lost") })
	fits := func() bool {
		return strings.Contains(ip(t, "link show %s", w.shop.Bridge), "mtu 1300 ") &&
			strings.Contains(ipInside(t, w.webNS, "link show eth0"), "mtu 1300 ")
	}
	ip(t, "link set %s mtu 1300", uplink)
	expect.Eventually(t, "containers have the MTU of the way out", fits)
	ip(t, "route del default")
	ip(t, "link set %s down", w.shop.Bridge)
	expect.Eventually(t, "the bridge is up again", func() bool { return strings.Contains(ip(t, "link show %s", w.shop.Bridge), ",UP") })
	expect.Equal(t, fits(), true, "the MTU is the same while there is no way out")
}

// The files are removed, and nothing else: no mount comes or goes.
func TestRemovedFilesAreNoticed(t *testing.T) {
	w := newTown(t)
	w.converge()
	paths := w.Paths(w.web)
	files := map[string]string{paths.Hosts: "", paths.ResolvConf: "", paths.Hostname: ""}
	for path := range files {
		files[path] = text(t, path)
	}
	w.repairing(func() { t.Error("a namespace was said to be lost") })
	for range 2 { // the first time it may have been seen by who has just begun to look
		for path := range files {
			expect.Check(t, os.Remove(path))
		}
		for path, want := range files {
			expect.Eventually(t, path+" is there again", func() bool {
				content, err := os.ReadFile(path)
				return err == nil && string(content) == want && want != ""
			})
		}
	}
}

// What is removed on purpose is not brought back.
func TestNothingRemovedIsRepaired(t *testing.T) {
	w := newDualStack(t, network.Network{})
	w.converge()
	stays := w.network("stays")
	w.repairing(func() { t.Error("a namespace was said to be lost") })
	w.removeAll()
	// Whoever repairs this looks at everything.
	ip(t, "link del %s", stays.Bridge)
	expect.Eventually(t, "what stays is repaired", func() bool {
		_, err := net.InterfaceByName(stays.Bridge)
		return err == nil
	})
	expect.Equal(t, w.traces(), []string{"link " + stays.Bridge}, "what stays")
	expect.Check(t, w.RemoveNetwork(t.Context(), stays))
}

// The mounts of the run directory are gone, with a process left in a namespace.
func TestLostNamespaceIsPinnedAgain(t *testing.T) {
	w := newDualStack(t, network.Network{})
	w.converge()
	serve(t, w.webNS, "tcp", ":80", "web")
	ns := expect.Value(os.Open(w.webNS))(t)
	defer ns.Close()
	held, other := holdNamespace(t, w.webNS), holdNamespace(t, w.dbNS)
	lost := make(chan struct{}, 1)
	w.repairing(func() {
		select {
		case lost <- struct{}{}:
		default:
		}
	})
	expect.Check(t, unix.Unmount(w.webNS, unix.MNT_DETACH))
	expect.Check(t, unix.Unmount(filepath.Dir(w.Paths(w.web).Hosts), unix.MNT_DETACH))
	for _, dir := range []string{filepath.Dir(w.Paths(w.web).Hosts), w.webNS} {
		expect.Check(t, os.RemoveAll(dir))
	}
	expect.Receive(t, "the loss is noticed", lost)
	for what, pid := range map[string]int{"the host's": holdNamespace(t, ""), "its neighbour's": other, "none": 1 << 22} {
		expect.Equal(t, expect.Value(w.Adopt(t.Context(), w.web, pid))(t), false, "adopted a process in %s namespace", what)
	}
	expect.Equal(t, expect.Value(w.Adopt(t.Context(), w.web, held))(t), true, "its namespace was pinned")
	pinned := expect.Value(os.Stat(w.webNS))(t)
	expect.Equal(t, os.SameFile(expect.Value(ns.Stat())(t), pinned), true, "the same namespace is pinned")
	expect.Eventually(t, "the files are back", func() bool {
		content, err := os.ReadFile(w.Paths(w.web).Hosts)
		return err == nil && strings.Contains(string(content), "web")
	})
	answers(t, w.outside, "tcp", at(hostAddr, 8080), "web *")
}

// Somebody breaks the same thing again and again.
func TestNobodyIsFought(t *testing.T) {
	l := newLab(t)
	var repaired atomic.Int32
	log := slog.New(countingHandler{&repaired})
	l.Networks = expect.Value(network.New(network.Options{RunDir: l.runDir, Logger: log}))(t)
	w := settle(l)
	w.repairing(func() {})
	begun := time.Now()
	expect.Eventually(t, "it is repaired three times", func() bool {
		ip(t, "link set %s down", w.shop.Bridge)
		return repaired.Load() >= 3
	})
	// At once, after one second, after two more: a busy machine may only be slower.
	if took := time.Since(begun); took < 3*time.Second {
		t.Errorf("repaired %d times in %s", repaired.Load(), took)
	}
}

type countingHandler struct{ n *atomic.Int32 }

func (h countingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h countingHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn && strings.HasPrefix(r.Message, "repaired") {
		h.n.Add(1)
	}
	return nil
}
func (h countingHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h countingHandler) WithGroup(string) slog.Handler      { return h }

// holdNamespace starts a process in the namespace and returns its id.
func holdNamespace(t testing.TB, netns string) int {
	t.Helper()
	command := exec.Command("sleep", "1000")
	inside(t, netns, func() { expect.Check(t, command.Start()) })
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return command.Process.Pid
}
