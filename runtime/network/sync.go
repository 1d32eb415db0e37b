package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
)

// SyncPorts makes the rules of the host those of exactly these networks and
// ports, in one transaction, and switches forwarding on when there are any.
// Nothing is written where nothing differs from what is in the kernel, so it
// may be called often, which mends the table after somebody flushed the whole
// ruleset. Without networks and ports the table is removed, and forwarding
// switched off again if nothing else can have come to need it.
//
// It has to run after EnsureNetwork and before a container starts: it is what
// isolates a network and lets it out. Ports that contradict each other do not
// keep the others from being published: the first one wins, and the error
// joins a *PortError for each of the rest.
func (n *Networks) SyncPorts(ctx context.Context, ports []Port, networks []Network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := ctx.Err()
	for _, w := range networks {
		err = errors.Join(err, w.check())
	}
	if err != nil {
		return fmt.Errorf("cannot publish ports: %w", err)
	}
	good, rejected := consistent(ports)
	if err := n.syncRules(good, sorted(networks)); err != nil {
		return errors.Join(fmt.Errorf("cannot publish ports: %w", err), rejected)
	}
	return rejected
}

// sorted orders the networks by their bridge, each once.
func sorted(networks []Network) []Network {
	byBridge := func(v, w Network) int { return cmp.Compare(v.Bridge, w.Bridge) }
	networks = slices.SortedFunc(slices.Values(networks), byBridge)
	return slices.CompactFunc(networks, func(v, w Network) bool { return v.Bridge == w.Bridge })
}

func (n *Networks) syncRules(ports []Port, networks []Network) error {
	needed := len(ports) > 0 || len(networks) > 0
	on, err := forwarding()
	if err != nil {
		return err
	}
	closed, err := n.closedLinks(needed && !on)
	if err != nil {
		return err
	}
	if !needed {
		if closed, err = n.closeAgain(closed); err != nil {
			return err
		}
	}
	conn, err := openTables()
	if err != nil {
		return err
	}
	defer conn.CloseLasting()
	changed, err := replaceRules(conn, newRuleset(networks, ports, closed))
	if err != nil {
		return err
	}
	if changed {
		n.logger.Info("rules replaced", "networks", len(networks), "ports", len(ports))
	}
	// Only now: the rules keep closed what was closed.
	if needed && !on {
		if err := setSysctl(forwardingKey, "1"); err != nil {
			return err
		}
		n.logger.Info("forwarding switched on for containers", "closed", closed)
	}
	if changed || !n.flowsPurged {
		containers := slices.Clone(n.pools)
		for _, w := range networks {
			containers = append(containers, w.Subnet)
		}
		if err := purgeFlows(ports, containers); err != nil {
			// Such connections end by themselves once they are silent.
			n.logger.Warn("stale connections may go on", "error", err)
		}
		n.flowsPurged = true
	}
	return nil
}

// replaceRules says whether there was anything to replace.
func replaceRules(conn *nftables.Conn, r ruleset) (changed bool, err error) {
	tables, err := conn.ListTablesOfFamily(r.table.Family)
	if err != nil {
		return false, fmt.Errorf("cannot list tables: %w", err)
	}
	exists := slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == r.table.Name })
	if r.empty() {
		if exists {
			r.remove(conn)
			err = conn.Flush()
		}
		if err != nil {
			return false, fmt.Errorf("cannot remove table %s: %w", tableName, err)
		}
		return exists, nil
	}
	if exists && r.hasRules(conn) {
		sets, err := r.differing(conn)
		if err == nil && len(sets) == 0 {
			return false, nil
		}
		if err == nil && refill(conn, sets) == nil {
			return true, nil
		}
		// Whatever is wrong with these sets, a new table has better ones.
	}
	if err := r.write(conn); err != nil {
		return false, fmt.Errorf("cannot write table %s: %w", tableName, err)
	}
	return true, nil
}

// published finds the port that takes packets for this address of the host.
func published(ports []Port, protocol string, to netip.AddrPort) (Port, bool) {
	for _, p := range ports {
		if p.Protocol == protocol && p.HostPort == to.Port() && (p.anywhere() || p.HostIP == to.Addr()) {
			return p, true
		}
	}
	return Port{}, false
}
