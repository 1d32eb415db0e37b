package e2e

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/test/plant"
)

// debianRules are as /etc/nftables.conf of Debian: they begin by taking away
// whatever there is.
const debianRules = `
flush ruleset
table inet filter {
	chain input { type filter hook input priority filter; policy accept; }
	chain forward { type filter hook forward priority filter; policy accept; }
	chain output { type filter hook output priority filter; policy accept; }
}
`

// fw4Rules are as those of OpenWrt, which replaces its own table, with what it
// has to be told of containers.
const fw4Rules = `
table inet fw4
flush table inet fw4
table inet fw4 {
	chain input {
		type filter hook input priority filter; policy drop;
		iif lo accept
		ct state established,related accept
		iifname "mgl-*" accept
		tcp dport { 8090, 8097 } accept
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
		ct state established,related accept
		iifname "mgl-*" accept
		oifname "mgl-*" accept
	}
	chain output { type filter hook output priority filter; policy accept; }
}
`

// A reload of the host's firewall cuts off nobody for good: while the agent runs
// ports are back at once and connections go on; else when it starts.
func TestFirewallReloads(t *testing.T) {
	long(t, "reloads of the firewall")
	newSite(t)
	r := newRig(t, "embedded")
	t.Cleanup(func() { r.load("table inet filter\ndelete table inet filter\ntable inet fw4\ndelete table inet fw4\n") })
	r.running()
	r.install(r.application(labID, "1.0.0", labFile, nil))
	r.answers(8090)
	services := r.services(labID)
	connection := r.dial()

	for _, reload := range []struct{ name, rules string }{
		{"debian", debianRules},
		{"debian", debianRules},
		{"fw4", fw4Rules},
		{"fw4", fw4Rules},
		{"flushed", "flush ruleset\n"},
	} {
		r.load(reload.rules)
		r.backWithin(2*time.Second, reload.name)
		r.namesWork(services)
		r.answersNames()
		if err := connection.echo(); err != nil {
			t.Errorf("%s: the connection is cut: %v", reload.name, err)
		}
	}

	for _, rules := range []string{debianRules, fw4Rules} {
		r.stop()
		r.load(rules)
		// Services of one network need no rule of anybody.
		if err := r.fetches(services["web"].Pid, "http://counter:9090/healthz"); err != nil {
			t.Error(err)
		}
		r.running()
		r.backWithin(5*time.Second, "reloaded without an agent")
		r.namesWork(services)
		connection = r.dial()
	}
	check(t, connection.echo())
}

// load loads a file of rules.
func (r *rig) load(rules string) {
	r.t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("nft: %v: %s", err, out)
	}
}

// backWithin says that the published port works, soon enough.
func (r *rig) backWithin(limit time.Duration, what string) {
	r.t.Helper()
	begun := time.Now()
	r.eventually(what+": the port works", func() error {
		_, err := plant.Ask(r.t.Context(), 8090)
		return err
	})
	if took := time.Since(begun); took > limit {
		r.t.Errorf("%s: the port was away for %s, want at most %s", what, took, limit)
	}
}
