package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
)

// SyncPorts makes the host's rules match exactly these networks and ports, in one
// transaction per family, and switches forwarding on if there are any. It writes only what
// differs, so it may be called often, and restores a table after a flush. Without networks
// and ports it removes the table, and restores forwarding if it was switched on here.
//
// It has to run after Ensure and before a container starts, for its rules isolate a network
// and let it out. Of ports that collide the first is published; the error joins a
// *PortError for each of the others.
func (n *Networks) SyncPorts(ctx context.Context, ports []Port, networks []Network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cannot publish ports: %w", err)
	}
	good, rejected := consistent(ports)
	networks = sorted(networks)
	if n.synced != nil && n.good.Load() == n.heard.Load() && slices.Equal(n.ports, good) && slices.Equal(n.networks, networks) {
		return rejected // Run has found it in order
	}
	n.ports, n.networks = good, networks
	if n.synced == nil {
		n.synced = make(map[nftables.TableFamily]ruleset)
	}
	if err := surveyed(func(at *survey) error { return n.syncRules(at, everyFamily) }); err != nil {
		n.tell(n.news)
		return errors.Join(fmt.Errorf("cannot publish ports: %w", err), rejected)
	}
	return rejected
}

// everyFamily has forwarding switched on wherever it is needed and off.
func everyFamily(*family) bool { return true }

// sorted sorts the networks by bridge and drops duplicates.
func sorted(networks []Network) []Network {
	networks = slices.Clone(networks)
	slices.SortStableFunc(networks, func(v, w Network) int { return cmp.Compare(v.Bridge, w.Bridge) })
	return slices.CompactFunc(networks, func(v, w Network) bool { return v.Bridge == w.Bridge })
}

// syncRules applies the last SyncPorts. forward decides whether to switch forwarding on now.
func (n *Networks) syncRules(at *survey, forward func(*family) bool) error {
	host, err := readFirewall()
	if err != nil {
		return err
	}
	for _, f := range families() {
		err = errors.Join(err, n.syncFamily(at, host, f, forward))
	}
	if len(n.networks) > 0 {
		n.advise(host)
	}
	return err
}

// advise logs changed advice about the host's firewall once.
func (n *Networks) advise(host firewall) {
	problems, err := host.advice(ipv4(), n.pools)
	if err != nil {
		n.logger.Debug("the host's firewall cannot be read", "error", err)
		return
	}
	advice := fmt.Sprint(problems)
	if advice == n.advice {
		return
	}
	n.advice = advice
	for _, p := range problems {
		n.logger.Warn(p.What, "mend", p.Mend)
	}
}

// syncFamily makes the table of one family match its ports and networks.
func (n *Networks) syncFamily(at *survey, w firewall, f *family, forward func(*family) bool) error {
	ports := slices.DeleteFunc(slices.Clone(n.ports), func(p Port) bool { return !f.has(p.Address) })
	networks, guard := f.of(n.networks), n.guardFor(f, w)
	needed := len(ports) > 0 || len(networks) > 0
	on, err := f.isForwarding()
	if err != nil {
		return err
	}
	host, err := n.ensureForwarding(f, at.links, needed, on)
	if err != nil {
		return err
	}
	before, again := n.synced[f.table]
	table := n.owner.own(w, f)
	there := slices.Contains(w.tables, table)
	wanted := newRuleset(f, table, n.owner, networks, ports, host, guard)
	changed, err := replaceRules(w.conn, wanted, there)
	if cannot := err; err != nil && guard == guarded {
		wanted = newRuleset(f, table, n.owner, networks, ports, host, shut)
		changed, err = replaceRules(w.conn, wanted, there)
		if err == nil && before.guarding != shut {
			n.logger.Warn("published ports are closed to other hosts: the kernel cannot guard them", "family", familyName(f.table), "error", cannot)
		}
	}
	if err != nil {
		return err
	}
	n.synced[f.table] = wanted
	n.hold(table, !wanted.empty())
	if changed {
		n.logger.Info("rules replaced", "family", familyName(f.table), "networks", len(networks), "ports", len(ports))
	}
	if len(ports) > 0 && wanted.guarding == guarded && (!again || before.guarding != guarded) {
		n.logger.Info("published ports are reachable only where the host's firewall allows", "family", familyName(f.table))
	}
	// Only now: the rules already keep closed what was closed.
	if needed && !on && forward(f) {
		if err := setSysctl(f.forwarding, "1"); err != nil {
			return err
		}
		n.logger.Info("forwarding switched on for containers only", "key", f.forwarding)
	}
	if !changed && again {
		return nil
	}
	if err := n.purgeFlows(at, f, ports, networks); err != nil && (needed || changed) {
		// Such connections end by themselves when they fall silent.
		n.logger.Warn("stale connections may continue", "error", err)
	}
	return nil
}

// replaceRules reports whether it replaced anything. there: the table already existed.
func replaceRules(conn *nftables.Conn, r ruleset, there bool) (changed bool, err error) {
	switch {
	case r.empty() && !there, !r.empty() && there && r.isThere(conn):
		return false, nil
	case r.empty():
		r.remove(conn)
		err = commit(conn)
	default:
		err = r.write(conn)
	}
	if err != nil {
		return false, fmt.Errorf("cannot replace table %s: %w", r.table.name, err)
	}
	return true, nil
}
