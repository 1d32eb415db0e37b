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

// isForwarding says whether the host passes packets on between its links. One without a
// switch for it is taken to do so.
func (f *family) isForwarding() (bool, error) {
	on, err := readSysctl(f.forwarding)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	return on == "1", err
}

func (f *family) setting(link, key string) string { return f.sysctl + "/conf/" + link + "/" + key }

// hostForwarding is what the host passes on between links that are not of
// containers. Zero is everything: it forwarded before.
type hostForwarding struct {
	closed  bool        // forwarding was switched on for containers: only this
	passing [][2]string // from link, to link
	changed []string    // settings that were 1 before, below /proc/sys
}

// acceptRA is 1 where a link listens to routers until the host forwards, and 2
// where it listens all the same. Without that the host would lose its own way out.
const acceptRA = "accept_ra"

// ensureForwarding says what the host goes on passing while containers need
// forwarding, which the caller switches on once the rules keep the rest closed. Where
// they do not need it, and those of another margolite neither, it gives back the
// settings of before: nothing else passed since.
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
	// Packets pass between links that forwarded before, and within each bridge,
	// whose packets are filtered as well where br_netfilter says so.
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

// forwardingBefore says what the host passed on before forwarding was switched on
// for containers. The kernel forgets what was, so RunDir has it, for as long as
// this boot lasts.
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
	if h = n.synced[f.table].host; h.closed { // somebody emptied RunDir
		err = n.keepForwarding(f, h.changed)
	}
	return h, err
}

// keepForwarding writes what forwardingBefore reads.
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

// prepareForwarding keeps what switching it on changes.
func (n *Networks) prepareForwarding(f *family, h *hostForwarding) error {
	entries, err := os.ReadDir("/proc/sys/" + f.sysctl + "/conf")
	if err != nil {
		return fmt.Errorf("cannot list links: %w", err)
	}
	listening := func(setting string) bool { return strings.HasSuffix(setting, "/"+acceptRA) }
	// Where somebody switched it off since, nothing forwards any more.
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

// setEach sets these settings, less those of links that are gone.
func setEach(settings []string, value string) error {
	for _, setting := range settings {
		if err := setSysctl(setting, value); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// restoreForwarding switches off what was switched on for containers.
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
