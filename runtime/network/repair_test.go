package network_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
)

// converge does what an agent does when it starts.
func (w *town) converge() {
	w.t.Helper()
	for _, n := range w.networks {
		expect.Check(w.t, w.EnsureNetwork(w.ctx, n))
	}
	for _, s := range w.sandboxes {
		w.sandbox(s)
	}
	w.publish(port(w.web, "tcp", 8080, 80))
	expect.Check(w.t, w.Leftovers(w.ctx, w.sandboxes, w.networks))
}

// removeAll removes what converge made, one after another.
func (w *town) removeAll() {
	w.t.Helper()
	for _, s := range w.sandboxes {
		expect.Check(w.t, w.RemoveSandbox(w.ctx, network.Sandbox{Project: s.Project, Service: s.Service, Number: s.Number}))
	}
	for _, n := range w.networks {
		expect.Check(w.t, w.RemoveNetwork(w.ctx, n))
	}
	expect.Check(w.t, w.SyncPorts(w.ctx, nil, nil))
}

// works checks that web serves, from a listener started by it: one in a
// namespace of the past would not do.
func (w *town) works(t *testing.T) {
	t.Helper()
	t.Run("works", func(t *testing.T) {
		serve(t, w.webNS, "tcp", ":80", "web")
		answers(t, w.outside, "tcp", at(hostAddr, 8080), "web "+outsideAddr)
		answers(t, w.webNS, "tcp", at(hostAddr, 8080), "web *")
		answers(t, w.webNS, "tcp", "127.0.0.1:80", "web 127.0.0.1")
		answers(t, w.dbNS, "tcp", at(w.web.Address(), 80), "web "+w.db.Address().String())
	})
}

func TestRepeatingChangesNothing(t *testing.T) {
	w := newTown(t)
	w.converge()
	before, index := generation(t), linkIndex(t, w.shop.Bridge)
	files := expect.Value(os.Stat(w.Paths(w.web).Hosts))(t)
	w.converge()
	expect.Equal(t, generation(t), before, "generation of nf_tables")
	expect.Equal(t, linkIndex(t, w.shop.Bridge), index, "index of the bridge")
	expect.Equal(t, expect.Value(os.Stat(w.Paths(w.web).Hosts))(t).ModTime(), files.ModTime(), "time of the hosts file")
	w.works(t)
}

// What is set up again is repaired. TestDamageIsNoticed has the damage that the kernel tells of,
// TestDamageToLinksOfAContainerIsRepaired that within a sandbox, and TestContainersSurviveDamageToTheNetwork of the runtime
// a run directory that was wiped.
func TestDamageIsRepaired(t *testing.T) {
	for name, damage := range map[string]func(w *town){
		"another address beside the right one": func(w *town) { address(w.t, w.shop.Bridge, "192.0.2.8/24") },
		"another address with a peer": func(w *town) {
			ip(w.t, "address add 192.0.2.8 peer 192.0.2.10/31 dev %s", w.shop.Bridge)
		},
		"hairpin mode off": func(w *town) {
			ip(w.t, "link set %s type bridge_slave hairpin off", outer(w.t, w.webNS))
		},
		"bridge down and without its settings": func(w *town) {
			setSysctl(w.t, "net/ipv4/conf/"+w.shop.Bridge+"/route_localnet", "0")
			ip(w.t, "link set %s down", w.shop.Bridge)
		},
		"namespaces no longer pinned": func(w *town) {
			expect.Check(w.t, unix.Unmount(w.webNS, unix.MNT_DETACH))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTown(t)
			w.converge()
			damage(w)
			w.converge()
			w.works(t)
		})
	}
}

func TestSandboxesLiveOnTmpfsToo(t *testing.T) {
	requireLab(t)
	dir := t.TempDir()
	expect.Check(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { expect.Check(t, unix.Unmount(dir, 0)) }) // fails while anything in it is mounted
	w := settle(newLabIn(t, dir))
	w.converge()
	w.works(t)
}

func TestRemovingLeavesNothing(t *testing.T) {
	for name, damage := range map[string]func(w *town){
		"of what is whole": func(*town) {},
		"of a link without its peer": func(w *town) {
			inside(w.t, w.webNS, func() { ip(w.t, "link del eth0") })
		},
		"of a pin that is a file":     func(w *town) { expect.Check(w.t, unix.Unmount(w.webNS, unix.MNT_DETACH)) },
		"of a pin mounted twice":      func(w *town) { expect.Check(w.t, unix.Mount(w.webNS, w.webNS, "", unix.MS_BIND, "")) },
		"of a sandbox without bridge": func(w *town) { expect.Check(w.t, w.RemoveNetwork(w.ctx, w.shop)) },
		"of a sandbox without files": func(w *town) {
			for _, s := range w.sandboxes {
				expect.Check(w.t, unix.Unmount(filepath.Dir(w.Paths(s).Hosts), unix.MNT_DETACH))
			}
			expect.Check(w.t, os.RemoveAll(filepath.Join(w.runDir, "hosts")))
		},
		"of files mounted twice": func(w *town) {
			expect.Check(w.t, unix.Mount("tmpfs", filepath.Dir(w.Paths(w.web).Hosts), "tmpfs", 0, ""))
		},
		"of files that a container still has": func(w *town) {
			file := expect.Value(os.Open(w.Paths(w.web).Hosts))(w.t)
			w.t.Cleanup(func() { file.Close() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTown(t)
			setSysctl(t, "net/ipv4/ip_forward", "1")
			w.converge()
			damage(w)
			w.removeAll()
			w.removeAll() // there is nothing to remove
			expect.Equal(t, w.traces(), nil, "left behind")
		})
	}
}

func TestLeftoversAreWhatNobodyKeeps(t *testing.T) {
	w := newTown(t)
	w.converge()
	expect.Check(t, os.WriteFile(filepath.Join(w.runDir, "netns", "stale+x+1"), nil, 0o444)) // from before a reboot
	expect.Check(t, w.Leftovers(t.Context(), []network.Sandbox{w.web, w.db}, []network.Network{w.shop}))
	w.works(t)
	for _, trace := range w.traces() {
		if strings.Contains(trace, "app") || strings.Contains(trace, "stale") || strings.Contains(trace, w.other.Bridge) {
			t.Errorf("left behind: %s", trace)
		}
	}
	w.clear()
	expect.Equal(t, w.traces(), nil, "left behind")
}

// What the host's own firewall drops stays dropped.
func TestFirewallOfTheHostHasTheLastWord(t *testing.T) {
	w := newTown(t)
	w.publish(port(w.web, "tcp", 8080, 80))
	serve(t, w.webNS, "tcp", ":80", "web")
	nft(t, "table ip filter { chain FORWARD { type filter hook forward priority filter; policy drop; }; }")
	t.Cleanup(func() { nft(t, "delete table ip filter") })
	silent(t, w.outside, "tcp", at(hostAddr, 8080))
}

func TestConcurrentUse(t *testing.T) {
	w := newTown(t)
	var all sync.WaitGroup
	each := func(f func(s network.Sandbox) error) {
		for i := range 8 {
			all.Go(func() {
				expect.OK(t, f(replica(w.shop, "many", i+3)))
			})
			all.Go(func() {
				expect.OK(t, w.SyncPorts(w.ctx, []network.Port{port(w.web, "tcp", uint16(8000+i), 80)}, w.networks))
			})
			all.Go(func() {
				expect.OK(t, expect.ErrorOf(w.Choose(network.Network{Name: "third_default"}, false, nil)))
			})
		}
		all.Wait()
	}
	each(func(s network.Sandbox) error { return w.EnsureSandbox(w.ctx, s, nil) })
	each(func(s network.Sandbox) error { return w.RemoveSandbox(w.ctx, s) })
	w.converge()
	w.works(t)
}

// killedRun makes the test binary a process that builds everything up and
// takes it down again, until it is killed in the middle of it. Whoever comes
// next has to get along with what it left.
const killedRun = "MARGOLITE_NETWORK_KILLED"

type work struct {
	RunDir    string
	Networks  []network.Network
	Sandboxes []network.Sandbox
}

func workUntilKilled(order string) error {
	var w work
	if err := json.Unmarshal([]byte(order), &w); err != nil {
		return err
	}
	n, err := network.New(network.Options{RunDir: w.RunDir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	ctx := context.Background()
	fmt.Println("at work")
	for round := 0; ; round++ {
		for _, net := range w.Networks {
			err = errors.Join(err, n.EnsureNetwork(ctx, net))
		}
		for _, s := range w.Sandboxes {
			e := n.EnsureSandbox(ctx, s, []network.Host{{Address: s.Address(), Names: []string{fmt.Sprint("round", round)}}})
			ports := []network.Port{port(s, "tcp", 8080, 80)}
			if s.Attached[0].Address6.IsValid() {
				ports = append(ports, port6(s, "tcp", 8080, 80))
			}
			err = errors.Join(err, e, n.SyncPorts(ctx, ports, w.Networks))
		}
		for _, s := range w.Sandboxes {
			err = errors.Join(err, n.RemoveSandbox(ctx, s))
		}
		for _, net := range w.Networks {
			err = errors.Join(err, n.RemoveNetwork(ctx, net))
		}
		if err = errors.Join(err, n.SyncPorts(ctx, nil, nil)); err != nil {
			return err
		}
	}
}

func TestKillAtAnyMomentIsSurvived(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: kills at every moment")
	}
	w := newTown(t)
	// One replica has all that there is.
	dual := w.networkOf(network.Network{Name: "shop_dual", Internal: true}, true, w.shop.Subnet, w.other.Subnet)
	lan := w.networkOf(network.Network{Name: "shop_lan", Driver: "macvlan", Parent: uplink, Subnet: netip.MustParsePrefix("203.0.113.0/24")}, false)
	all := replica(dual, "all", 7)
	all.Attached = append(all.Attached, attachment(w.shop, 7), network.Attachment{Network: lan, Address: netip.MustParseAddr("203.0.113.77")})
	w.networks = append(w.networks, dual, lan)
	w.sandboxes = append(w.sandboxes, all)
	order := expect.Value(json.Marshal(work{w.runDir, w.networks, w.sandboxes}))(t)
	const kills = 60
	for i := range kills {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), killedRun+"="+string(order))
		cmd.Stderr = os.Stderr
		out := expect.Value(cmd.StdoutPipe())(t)
		expect.Check(t, cmd.Start())
		expect.Value(out.Read(make([]byte, 1)))(t)
		moment := time.AfterFunc(time.Duration(i)*time.Millisecond, func() { _ = cmd.Process.Kill() })
		if _ = cmd.Wait(); moment.Stop() || cmd.ProcessState.Exited() {
			t.Fatal("it ended before it was killed")
		}
		w.converge()
	}
	w.works(t)
	w.removeAll()
	expect.Equal(t, w.traces(), nil, "left behind")
}

func linkIndex(t testing.TB, name string) int {
	t.Helper()
	return expect.Value(net.InterfaceByName(name))(t).Index
}
