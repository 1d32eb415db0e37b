package network

import (
	"context"
	"maps"
	"net/netip"
	"slices"
)

// MaxListed is how many objects of a list are kept.
const MaxListed = maxListed

// Generation counts the transactions of nf_tables.
var Generation = generation

// WriteHosts is BeginHosts with the waiting.
func (n *Networks) WriteHosts(s Sandbox, hosts []Host) error {
	wait, err := n.BeginHosts(s, hosts)
	if err == nil {
		err = wait()
	}
	return err
}

// Address is that of the first link: the zero value without networks.
func (s Sandbox) Address() netip.Addr {
	if len(s.Attached) == 0 {
		return netip.Addr{}
	}
	return s.Attached[0].Address
}

// EnsureNetwork is Ensure for one network.
func (n *Networks) EnsureNetwork(ctx context.Context, w Network) error {
	return n.Ensure(ctx, []Network{w}, nil)
}

// EnsureSandbox is Ensure for one sandbox, with the names of others.
func (n *Networks) EnsureSandbox(ctx context.Context, s Sandbox, hosts []Host) error {
	err := n.Ensure(ctx, nil, []Sandbox{s})
	if err == nil {
		err = n.WriteHosts(s, hosts)
	}
	return err
}

// RemoveSandbox is Leftovers of one sandbox.
func (n *Networks) RemoveSandbox(ctx context.Context, s Sandbox) error {
	kept := n.sandboxes()
	delete(kept, s.file())
	return n.Leftovers(ctx, slices.Collect(maps.Values(kept)), n.madeNetworks())
}

// RemoveNetwork is Leftovers of one network.
func (n *Networks) RemoveNetwork(ctx context.Context, w Network) error {
	kept := slices.DeleteFunc(n.madeNetworks(), func(other Network) bool { return other.Name == w.Name })
	return n.Leftovers(ctx, slices.Collect(maps.Values(n.sandboxes())), kept)
}

func (n *Networks) madeNetworks() []Network {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Values(n.made))
}
