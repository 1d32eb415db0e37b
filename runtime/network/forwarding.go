package network

import (
	"bytes"
	"errors"
	"fmt"
	"net"
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

// forwardingFile keeps what was closed before.
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

// heed is written into the file behind the links whose router advertisements
// the host takes only because of us.
const heed = "accept_ra "

// closedLinks are those between which the host did not pass packets on before
// forwarding was switched on for containers: a gateway between two networks of
// a plant may rely on that. The kernel forgets what was, so it is kept in
// RunDir, for as long as this boot lasts. With remember the links are those of
// now, together with what was kept.
func (n *Networks) closedLinks(f *family, remember bool) ([]string, error) {
	closed, heeding, err := n.keptLinks(f)
	if err != nil || !remember {
		return closed, err
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("cannot list links: %w", err)
	}
	for _, link := range links {
		value, err := os.ReadFile("/proc/sys/" + f.sysctl + "/conf/" + link.Name + "/forwarding")
		open := err != nil || string(bytes.TrimSpace(value)) != "0"
		if !open && !isOurs(link.Name) && link.Flags&net.FlagLoopback == 0 && !slices.Contains(closed, link.Name) {
			closed = append(closed, link.Name)
		}
	}
	if f.table == nftables.TableFamilyIPv6 {
		if heeding, err = advertised(heeding); err != nil {
			return nil, err
		}
	}
	if err := n.keepLinks(f, closed, heeding); err != nil {
		return nil, err
	}
	// A host that forwards no longer listens to routers, and would lose its
	// own way out, unless it is told to listen all the same.
	for _, name := range heeding {
		if err := setSysctl("net/ipv6/conf/"+name+"/accept_ra", "2"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	return closed, nil
}

// advertised adds the links, and the model of those to come, that listen to
// routers only as long as the host does not forward.
func advertised(known []string) ([]string, error) {
	entries, err := os.ReadDir("/proc/sys/net/ipv6/conf")
	if err != nil {
		return nil, fmt.Errorf("cannot list links: %w", err)
	}
	for _, e := range entries {
		value, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + e.Name() + "/accept_ra")
		listens := err == nil && string(bytes.TrimSpace(value)) == "1"
		if listens && e.Name() != "all" && e.Name() != "lo" && !isOurs(e.Name()) && !slices.Contains(known, e.Name()) {
			known = append(known, e.Name())
		}
	}
	return known, nil
}

// keptLinks reads what keepLinks wrote in this boot.
func (n *Networks) keptLinks(f *family) (closed, heeding []string, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the boot id: %w", err)
	}
	kept, err := os.ReadFile(n.forwardingFile(f))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("cannot read closed links: %w", err)
	}
	lines, ok := bytes.CutPrefix(kept, boot)
	if !ok {
		return nil, nil, nil
	}
	for line := range strings.Lines(string(lines)) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, heed); ok {
			heeding = append(heeding, name)
		} else if line != "" {
			closed = append(closed, line)
		}
	}
	return closed, heeding, nil
}

func (n *Networks) keepLinks(f *family, closed, heeding []string) error {
	content, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("cannot read the boot id: %w", err)
	}
	for _, name := range closed {
		content = append(content, name+"\n"...)
	}
	for _, name := range heeding {
		content = append(content, heed+name+"\n"...)
	}
	path := n.forwardingFile(f)
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		return fmt.Errorf("cannot save closed links: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("cannot save closed links: %w", err)
	}
	return nil
}

// closeAgain switches forwarding off, if it was switched on for containers and
// nothing else can have come to rely on it since: between the links that were
// there then, it never was on. It returns the links that have to stay closed.
func (n *Networks) closeAgain(f *family, closed []string) ([]string, error) {
	path := n.forwardingFile(f)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return closed, nil
	}
	links, err := allLinks(nil)
	if err != nil {
		return nil, err
	}
	for _, link := range links {
		// Another margolite counts on forwarding as well.
		name := link.Attrs().Name
		own := isOurs(name) && !n.owner.isOthers(link)
		if isUp(link) && name != "lo" && !own && !slices.Contains(closed, name) {
			return closed, nil
		}
	}
	if err := setSysctl(f.forwardingKey(), "0"); err != nil {
		return nil, err
	}
	_, heeding, err := n.keptLinks(f)
	if err != nil {
		return nil, err
	}
	for _, name := range heeding {
		if err := setSysctl("net/ipv6/conf/"+name+"/accept_ra", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("cannot delete the record of closed links: %w", err)
	}
	n.logger.Info("forwarding disabled again", "key", f.forwardingKey())
	return nil, nil
}
