package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

// trouble is something around the device that goes wrong until it is ended.
type trouble struct {
	name  string
	begin func(r *Rig) (end func())
}

// troubles are all there are for a rig.
func (r *Rig) troubles() []trouble {
	all := []trouble{
		{"the WFM is away", func(r *Rig) func() {
			check(r.T, r.WFM.Close())
			return func() { check(r.T, r.WFM.Start("")) }
		}},
		{"the registry is away", func(r *Rig) func() {
			check(r.T, r.Registry.Close())
			return func() { check(r.T, r.Registry.Start("")) }
		}},
		{"nothing gets through, and nothing says so", func(r *Rig) func() { return r.drops("") }},
		{"every third packet is lost", func(r *Rig) func() { return r.drops("numgen random mod 3 == 0") }},
		{"the WFM's name is not known", (*Rig).forgetsNames},
		{"a shim is killed", (*Rig).killsShim},
	}
	for _, f := range []fault.Fault{
		{Kind: fault.HTML}, // a captive portal
		{Kind: fault.Stall, Bytes: 100},
		{Kind: fault.Cut, Bytes: 100},
		{Kind: fault.Reset},
		{Kind: fault.Answer, Status: 503, RetryAfter: "1"},
		{Kind: fault.Corrupt, Bytes: 50},
		{Kind: fault.Slow, Bytes: 2000},
		{Kind: fault.Delay, Wait: 2 * time.Second},
	} {
		all = append(all, trouble{fmt.Sprintf("answers with %s", f.Kind), func(r *Rig) func() { return r.misbehaves(f) }})
	}
	for _, off := range []time.Duration{-56 * 365 * 24 * time.Hour, -36 * time.Hour, 36 * time.Hour, 30 * 365 * 24 * time.Hour} {
		all = append(all, trouble{fmt.Sprintf("the clock is off by %s", off), func(r *Rig) func() { return r.setsClock(off) }})
	}
	if r.options.Containerd != "" {
		all = append(all, trouble{"containerd is killed", func(r *Rig) func() {
			r.KillContainerd()
			return func() { check(r.T, r.StartContainerd()) }
		}})
	}
	return all
}

// Troubles makes changes while things around the device go wrong, and looks at
// what runs then. When it is over everything comes to what the WFM wants.
func (r *Rig) Troubles(n int) {
	r.T.Helper()
	all := r.troubles()
	for range n {
		r.Trouble(all[r.Rand.IntN(len(all))].name)
	}
}

// Trouble is one of them, by name.
func (r *Rig) Trouble(name string) {
	r.T.Helper()
	all := r.troubles()
	t := all[slices.IndexFunc(all, func(t trouble) bool { return t.name == name })]
	r.T.Log(t.name)
	undisturbed := r.Undisturbed()
	if r.Rand.IntN(2) == 0 {
		r.Change()
		r.pause(longest)
	}
	end := t.begin(r)
	r.Change()
	r.pause(2 * longest)
	if r.Rand.IntN(3) == 0 {
		r.KillAgent()
		r.pause(longest)
	}
	if name != "a shim is killed" { // which takes along what it keeps
		undisturbed()
	}
	end()
	check(r.T, r.eventually(func(ctx context.Context) error { return r.Control().Sync(ctx) })) // else it waits for minutes, as it should
	check(r.T, r.Reload())
	r.Converge()
}

// EachTrouble makes those troubles whose names are wanted.
func (r *Rig) EachTrouble(wanted func(name string) bool) {
	r.T.Helper()
	for _, t := range r.troubles() {
		if wanted(t.name) {
			r.Trouble(t.name)
		}
	}
}

// misbehaves has the WFM and the registry answer everything wrongly.
func (r *Rig) misbehaves(f fault.Fault) (end func()) {
	r.T.Helper()
	_, err := r.WFM.Faults().Inject(f)
	_, also := r.Registry.Faults().Inject(f)
	check(r.T, errors.Join(err, also))
	return func() {
		r.WFM.Faults().Clear("")
		r.Registry.Faults().Clear("")
	}
}

// drops loses packets to the WFM and the registry without a word; only those
// for which a condition of nftables holds, if one is given.
func (r *Rig) drops(condition string) (end func()) {
	r.T.Helper()
	const table = "inet faults"
	rules := "add table " + table + "\nadd chain " + table + " in { type filter hook input priority -200; }\n"
	for _, address := range []string{r.WFM.Address(), r.Registry.Address()} {
		_, port, err := net.SplitHostPort(address)
		check(r.T, err)
		for _, way := range []string{"dport", "sport"} {
			rules += fmt.Sprintf("add rule %s in tcp %s %s %s drop\n", table, way, port, condition)
		}
	}
	file := filepath.Join(r.dir, "drops")
	check(r.T, os.WriteFile(file, []byte(rules), 0o600))
	nft := func(arguments ...string) {
		r.T.Helper()
		if out, err := exec.CommandContext(r.T.Context(), "nft", arguments...).CombinedOutput(); err != nil {
			r.T.Fatalf("nft: %v: %s", err, out)
		}
	}
	nft("-f", file)
	return func() { nft("delete", "table", "inet", "faults") }
}

// wfmName is what the device knows the WFM by.
const wfmName = "wfm.faults.example"

// forgetsNames takes the WFM's name away, with nobody to ask for it.
func (r *Rig) forgetsNames() (end func()) {
	r.T.Helper()
	check(r.T, os.WriteFile(r.hosts(), nil, 0o644))
	return r.knowsNames
}

func (r *Rig) hosts() string { return filepath.Join(r.dir, "hosts") }

func (r *Rig) knowsNames() {
	r.T.Helper()
	check(r.T, os.WriteFile(r.hosts(), []byte("127.0.0.1 localhost "+wfmName+"\n"), 0o644))
}

// named has the device reach the WFM by its name, which it finds in a file.
func (r *Rig) named() {
	r.T.Helper()
	r.knowsNames()
	resolver := filepath.Join(r.dir, "resolv.conf")
	check(r.T, os.WriteFile(resolver, []byte("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"), 0o644))
	for target, source := range map[string]string{"/etc/hosts": r.hosts(), "/etc/resolv.conf": resolver} {
		check(r.T, unix.Mount(source, target, "", unix.MS_BIND, ""))
		r.T.Cleanup(func() { check(r.T, unix.Unmount(target, unix.MNT_DETACH)) })
	}
}

// settings are how the agent is configured.
func (r *Rig) settings() plant.Settings {
	s := plant.Settings{Settle: settle, LogLevel: "debug"}
	_, port, err := net.SplitHostPort(r.WFM.Address())
	check(r.T, err)
	s.WFM = map[string]string{"url": "https://" + net.JoinHostPort(wfmName, port)}
	return s
}

// killsShim kills a shim with everything that it keeps.
func (r *Rig) killsShim() (end func()) {
	shims := r.Shims()
	if len(shims) == 0 {
		return func() {}
	}
	plant.KillTree(shims[r.Rand.IntN(len(shims))])
	return func() {}
}

// clock is the file by which the agent's clock is off.
func (r *Rig) clock() string { return filepath.Join(r.dir, "clock") }

// setsClock has the agent's clock jump, and back when it is over.
func (r *Rig) setsClock(off time.Duration) (end func()) {
	r.T.Helper()
	check(r.T, os.WriteFile(r.clock(), []byte(off.String()), 0o644))
	return func() { check(r.T, os.WriteFile(r.clock(), []byte("0s"), 0o644)) }
}
