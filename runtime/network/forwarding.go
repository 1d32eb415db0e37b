package network

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// forwardingKey is the switch of the whole host.
func (f *family) forwardingKey() string {
	if f.table == nftables.TableFamilyIPv6 {
		return "net/ipv6/conf/all/forwarding"
	}
	return "net/ipv4/ip_forward"
}

// forwardingFile keeps what the settings were before.
func (n *Networks) forwardingFile(f *family) string {
	if f.table == nftables.TableFamilyIPv6 {
		return filepath.Join(n.runDir, "forwarding6")
	}
	return filepath.Join(n.runDir, "forwarding")
}

// forwarding says whether the host passes packets on between its links. One
// without a switch for it is taken to do so.
func forwarding(f *family) (bool, error) {
	value, err := os.ReadFile("/proc/sys/" + f.forwardingKey())
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read sysctl: %w", err)
	}
	return string(bytes.TrimSpace(value)) == "1", nil
}

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

// hostForwarding says what the host passed on before forwarding was switched on
// for containers. The kernel forgets what was, so RunDir has it, for as long as
// this boot lasts.
func (n *Networks) hostForwarding(f *family) (h hostForwarding, err error) {
	boot, err := os.ReadFile(bootID)
	if err != nil {
		return h, fmt.Errorf("cannot read the boot id: %w", err)
	}
	kept, err := os.ReadFile(n.forwardingFile(f))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return h, fmt.Errorf("cannot read forwarding settings: %w", err)
	}
	if lines, ok := bytes.CutPrefix(kept, boot); ok {
		h.closed, h.changed = true, strings.Fields(string(lines))
	} else if h = n.synced[f.table].host; !h.closed {
		return h, nil
	} else if err := n.keepForwarding(f, h.changed); err != nil { // somebody emptied RunDir
		return h, err
	}
	return h, h.setPassing(f)
}

const bootID = "/proc/sys/kernel/random/boot_id"

// keepForwarding writes what hostForwarding reads.
func (n *Networks) keepForwarding(f *family, changed []string) error {
	boot, err := os.ReadFile(bootID)
	path := n.forwardingFile(f)
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

// setPassing lets packets pass between links that forwarded before, and within
// each bridge, whose packets are filtered as well where br_netfilter says so.
func (h *hostForwarding) setPassing(f *family) error {
	links, err := allLinks(nil)
	if err != nil {
		return err
	}
	var open []string
	h.passing = nil
	for _, link := range links {
		name := link.Attrs().Name
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
	return nil
}

// prepareForwarding keeps what switching it on changes, and returns what the
// host goes on passing then.
func (n *Networks) prepareForwarding(f *family, h hostForwarding) (hostForwarding, error) {
	entries, err := os.ReadDir("/proc/sys/" + f.sysctl + "/conf")
	if err != nil {
		return h, fmt.Errorf("cannot list links: %w", err)
	}
	// Where somebody switched it off since, nothing forwards any more.
	h.changed = slices.DeleteFunc(h.changed, func(s string) bool { return !strings.HasSuffix(s, "/"+acceptRA) })
	for _, e := range entries {
		for _, key := range []string{"forwarding", "force_forwarding", acceptRA} {
			setting := f.setting(e.Name(), key)
			value, err := os.ReadFile("/proc/sys/" + setting)
			if err == nil && string(bytes.TrimSpace(value)) == "1" && e.Name() != "all" && !isOurs(e.Name()) && !slices.Contains(h.changed, setting) {
				h.changed = append(h.changed, setting)
			}
		}
	}
	if err := n.keepForwarding(f, h.changed); err != nil {
		return h, err
	}
	for _, setting := range h.changed {
		if !strings.HasSuffix(setting, "/"+acceptRA) {
			continue
		}
		if err := setSysctl(setting, "2"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return h, err
		}
	}
	h.closed = true
	return h, h.setPassing(f)
}

// setting is one of a link.
func (f *family) setting(link, key string) string { return f.sysctl + "/conf/" + link + "/" + key }

// restoreForwarding switches off what was switched on for containers, unless
// those of another margolite need it. Nothing else passed since.
func (n *Networks) restoreForwarding(f *family, h hostForwarding) (hostForwarding, error) {
	links, err := allLinks(nil)
	if err != nil || !h.closed || slices.ContainsFunc(links, n.owner.isOthers) {
		return h, err
	}
	if err := setSysctl(f.forwardingKey(), "0"); err != nil {
		return h, err
	}
	for _, setting := range h.changed {
		if err := setSysctl(setting, "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return h, err
		}
	}
	if err := os.Remove(n.forwardingFile(f)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return h, fmt.Errorf("cannot forget forwarding settings: %w", err)
	}
	n.logger.Info("forwarding disabled again", "key", f.forwardingKey())
	return hostForwarding{}, nil
}
