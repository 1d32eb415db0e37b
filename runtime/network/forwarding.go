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
)

const forwardingKey = "net/ipv4/ip_forward"

// forwarding says whether the host passes packets on between its links. One
// without a switch for it is taken to do so.
func forwarding() (bool, error) {
	value, err := os.ReadFile("/proc/sys/" + forwardingKey)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read sysctl: %w", err)
	}
	return string(bytes.TrimSpace(value)) == "1", nil
}

// closedLinks are those between which the host did not pass packets on before
// forwarding was switched on for containers: a gateway between two networks of
// a plant may rely on that. The kernel forgets what was, so it is kept in
// RunDir, for as long as this boot lasts. With remember the links are those of
// now, together with what was kept.
func (n *Networks) closedLinks(remember bool) ([]string, error) {
	path := filepath.Join(n.runDir, "forwarding")
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("cannot read the id of this boot: %w", err)
	}
	var closed []string
	kept, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot read closed links: %w", err)
	}
	if links, ok := bytes.CutPrefix(kept, boot); ok {
		closed = strings.Fields(string(links))
	}
	if !remember {
		return closed, nil
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("cannot list links: %w", err)
	}
	for _, link := range links {
		value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + link.Name + "/forwarding")
		open := err != nil || string(bytes.TrimSpace(value)) != "0"
		ours := isLinkName(bridgePrefix, link.Name) || isLinkName(vethPrefix, link.Name)
		if !open && !ours && link.Flags&net.FlagLoopback == 0 && !slices.Contains(closed, link.Name) {
			closed = append(closed, link.Name)
		}
	}
	content := string(boot) + strings.Join(closed, "\n") + "\n"
	if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
		return nil, fmt.Errorf("cannot keep closed links: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return nil, fmt.Errorf("cannot keep closed links: %w", err)
	}
	return closed, nil
}

// closeAgain switches forwarding off, if it was switched on for containers and
// nothing else can have come to rely on it since: between the links that were
// there then, it never was on. It returns the links that have to stay closed.
func (n *Networks) closeAgain(closed []string) ([]string, error) {
	path := filepath.Join(n.runDir, "forwarding")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return closed, nil
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("cannot list links: %w", err)
	}
	for _, link := range links {
		up := link.Flags&net.FlagUp != 0 && link.Flags&net.FlagLoopback == 0
		ours := isLinkName(bridgePrefix, link.Name) || isLinkName(vethPrefix, link.Name)
		if up && !ours && !slices.Contains(closed, link.Name) {
			return closed, nil
		}
	}
	if err := setSysctl(forwardingKey, "0"); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("cannot forget closed links: %w", err)
	}
	n.logger.Info("forwarding switched off again")
	return nil, nil
}
