package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"github.com/margolite/margolite/runtime/contain"
)

// Leftovers removes sandboxes and links that are not to be kept and are provably this
// owner's: by their mark, or by the name of a link that was not marked yet.
func (n *Networks) Leftovers(ctx context.Context, keep []Sandbox, nets []Network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	links, pins, files := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for _, s := range keep {
		files[s.file()] = true
		pins[s.file()] = pins[s.file()] || !s.Host
		for _, name := range s.links(n.owner) {
			links[name] = true
		}
	}
	for _, w := range nets {
		links[w.Bridge], links[aliasPrefix+marked(w.Name)] = true, true
	}
	err := ctx.Err()
	if err == nil {
		maps.DeleteFunc(n.made, func(bridge string, _ Network) bool { return !links[bridge] })
		n.filesMu.Lock()
		maps.DeleteFunc(n.files, func(file string, _ *sandboxFiles) bool { return !files[file] })
		n.filesMu.Unlock()
		err = surveyed(func(at *survey) error { return n.leftoverLinks(at, links) })
		err = errors.Join(err, n.leftoverFiles(n.netnsDir(), pins, n.removePin), n.leftoverFiles(n.hostsDir(), files, n.removeHosts))
	}
	if err != nil {
		return fmt.Errorf("cannot remove leftovers: %w", err)
	}
	return nil
}

func (n *Networks) leftoverLinks(at *survey, kept map[string]bool) error {
	var removals []func() error
	for name, link := range at.links {
		network, by := readMark(link)
		tagged := isLinkName(bridgePrefix, name) && strings.HasPrefix(name, bridgePrefix+n.owner.id[:tagDigits])
		unmarked := link.Attrs().Alias == "" && tagged
		if (by.is(n.owner) || unmarked) && !kept[name] && (isOurs(name) || !kept[aliasPrefix+network]) {
			n.logger.Debug("removing unneeded network link", "link", name)
			removals = append(removals, func() error {
				return withLinks(func(c *netlink.Handle) error { return removeLink(c, link) })
			})
		}
	}
	return sideBySide(removals)
}

// leftoverFiles removes the entries of a directory, one per sandbox, that are not kept.
func (n *Networks) leftoverFiles(dir string, kept map[string]bool, remove func(name string) error) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot list sandboxes: %w", err)
	}
	var removals []func() error
	for _, e := range entries {
		if !kept[e.Name()] {
			n.logger.Debug("removing unneeded sandbox", "sandbox", e.Name())
			removals = append(removals, func() error { return remove(e.Name()) })
		}
	}
	return sideBySide(removals)
}

const maxRemovals = 16 // at the same time

// sideBySide runs several removals at once, because the kernel is slow to remove a link.
func sideBySide(removals []func() error) error {
	failed := make([]error, len(removals))
	var workers errgroup.Group
	workers.SetLimit(maxRemovals)
	for i, remove := range removals {
		workers.Go(func() error {
			failed[i] = contain.Call(remove)
			return nil
		})
	}
	_ = workers.Wait() // none fails
	return errors.Join(failed...)
}
