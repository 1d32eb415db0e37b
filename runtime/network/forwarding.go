package network

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// isForwarding assumes that a host without the switch forwards packets.
func (f *family) isForwarding() (bool, error) {
	on, err := readSysctl(f.forwarding)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	return on == "1", err
}

func (f *family) setting(link, key string) string { return f.sysctl + "/conf/" + link + "/" + key }

// hostForwarding is what the host forwards between links that are not containers'. The zero
// value is everything: it forwarded before.
type hostForwarding struct {
	closed  bool        // forwarding was switched on for containers: only this
	passing [][2]string // from link, to link
	changed []string    // settings below /proc/sys that were 1 before
}

// acceptRA is 1 if a link listens to routers while the host does not forward, and 2 if it
// always does. Without 2 a forwarding host would lose its own way out.
const acceptRA = "accept_ra"

// ensureForwarding returns what the host keeps forwarding of its own while containers need
// forwarding. The caller switches that on once the rules block the rest. When neither our
// containers nor those of another margolite need it, the former settings are restored.
func (n *Networks) ensureForwarding(f *family, links map[string]netlink.Link, needed, on bool) (hostForwarding, error) {
	h, err := n.forwardingBefore(f)
	switch {
	case err != nil:
	case needed && !on:
		err = n.prepareForwarding(f, &h)
	case !needed && h.closed && !slices.ContainsFunc(slices.Collect(maps.Values(links)), n.owner.isOthers):
		return hostForwarding{}, n.restoreForwarding(f, h)
	}
	if err != nil || !h.closed {
		return h, err
	}
	// Packets pass between links that forwarded before, and within each bridge: br_netfilter
	// may have these filtered too.
	var open []string
	h.passing = nil
	for name, link := range links {
		if slices.Contains(h.changed, f.setting(name, f.forwards)) {
			open = append(open, name)
		} else if link.Type() == kindBridge && !isOurs(name) {
			h.passing = append(h.passing, [2]string{name, name})
		}
	}
	for _, from := range open {
		for _, to := range open {
			h.passing = append(h.passing, [2]string{from, to})
		}
	}
	return h, nil
}

const bootID = "/proc/sys/kernel/random/boot_id"

// forwardingBefore returns what the host forwarded before forwarding was switched on for
// containers. The kernel does not keep that, so RunDir does, valid for one boot.
func (n *Networks) forwardingBefore(f *family) (h hostForwarding, err error) {
	boot, err := os.ReadFile(bootID)
	kept, failed := os.ReadFile(filepath.Join(n.runDir, f.kept))
	if failed != nil && !errors.Is(failed, os.ErrNotExist) {
		err = errors.Join(err, failed)
	}
	if err != nil {
		return h, fmt.Errorf("cannot read forwarding settings: %w", err)
	}
	if lines, ok := bytes.CutPrefix(kept, boot); ok {
		return hostForwarding{closed: true, changed: strings.Fields(string(lines))}, nil
	}
	if h = n.synced[f.table].host; h.closed { // RunDir was emptied
		err = n.keepForwarding(f, h.changed)
	}
	return h, err
}

func (n *Networks) keepForwarding(f *family, changed []string) error {
	boot, err := os.ReadFile(bootID)
	path := filepath.Join(n.runDir, f.kept)
	if err == nil {
		err = os.MkdirAll(n.runDir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(path+".new", append(boot, strings.Join(changed, "\n")...), 0o644)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("cannot keep forwarding settings: %w", err)
	}
	return nil
}

// prepareForwarding records what switching forwarding on will change.
func (n *Networks) prepareForwarding(f *family, h *hostForwarding) error {
	entries, err := os.ReadDir("/proc/sys/" + f.sysctl + "/conf")
	if err != nil {
		return fmt.Errorf("cannot list links: %w", err)
	}
	listening := func(setting string) bool { return strings.HasSuffix(setting, "/"+acceptRA) }
	// If forwarding was switched off since, no link forwards any more.
	h.changed = slices.DeleteFunc(h.changed, func(s string) bool { return !listening(s) })
	for _, e := range entries {
		for _, key := range []string{"forwarding", "force_forwarding", acceptRA} {
			setting := f.setting(e.Name(), key)
			if now, _ := readSysctl(setting); now == "1" && e.Name() != "all" && !isOurs(e.Name()) && !slices.Contains(h.changed, setting) {
				h.changed = append(h.changed, setting)
			}
		}
	}
	h.closed = true
	if err := n.keepForwarding(f, h.changed); err != nil {
		return err
	}
	return setEach(slices.DeleteFunc(slices.Clone(h.changed), func(s string) bool { return !listening(s) }), "2")
}

// setEach skips settings of links that are gone.
func setEach(settings []string, value string) error {
	for _, setting := range settings {
		if err := setSysctl(setting, value); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (n *Networks) restoreForwarding(f *family, h hostForwarding) error {
	if err := setSysctl(f.forwarding, "0"); err != nil {
		return err
	}
	if err := setEach(h.changed, "1"); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(n.runDir, f.kept)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot forget forwarding settings: %w", err)
	}
	n.logger.Info("forwarding disabled again", "key", f.forwarding)
	return nil
}
