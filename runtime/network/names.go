package network

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	bridgePrefix = "mgl-"
	vethPrefix   = "mgv-"
	hashDigits   = 11 // with the prefix 15 characters, all that a link's name may have

	// Of the digits of a veth's name these stand for the replica, the others
	// for the network.
	replicaDigits = 8
	vethDigits    = "0123456789abcdefghijklmnopqrstuv"

	aliasPrefix = "margolite " // of the aliases of our links

	maxFileName = 200 // bytes, of the 255 that a file system takes
	maxLinks    = 64  // of one sandbox
)

// isLinkName says whether a link of this name was made for a network, or for a
// sandbox.
func isLinkName(prefix, name string) bool {
	allowed := "0123456789abcdef"
	if prefix == vethPrefix {
		allowed = vethDigits
	}
	digits, ok := strings.CutPrefix(name, prefix)
	return ok && len(digits) == hashDigits && strings.Trim(digits, allowed) == ""
}

// isOurs says so of the links of the host that this package makes under names
// of its own.
func isOurs(link string) bool {
	return isLinkName(bridgePrefix, link) || isLinkName(vethPrefix, link)
}

// linkPrefix is what the names of the replica's links on the host begin with.
func (s Sandbox) linkPrefix(o owner) string {
	return vethPrefix + hashed(replicaDigits, s.Project, s.Service, strconv.Itoa(s.Number), o.id)
}

// links names the host's ends of the replica's links: empty for those that
// have none. They depend on the networks, not on their order, unless two hashes
// meet.
func (s Sandbox) links(o owner) []string {
	names := make([]string, len(s.Attached))
	for i, a := range s.Attached {
		for try := 0; a.Network.isBridge(); try++ {
			name := s.linkPrefix(o) + hashed(hashDigits-replicaDigits, a.Network.Name, strconv.Itoa(try))
			if !slices.Contains(names, name) {
				names[i] = name
				break
			}
		}
	}
	return names
}

// hashed is always the same for the same parts.
func hashed(digits int, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return base32.NewEncoding(vethDigits).EncodeToString(sum[:])[:digits]
}

// file names the sandbox under RunDir. The separator occurs in no name, so no
// two sandboxes share a file.
func (s Sandbox) file() string {
	name := s.Project + "+" + s.Service + "+" + strconv.Itoa(s.Number)
	if len(name) > maxFileName {
		digits := hashed(2*hashDigits, name)
		name = name[:maxFileName-len(digits)] + digits
	}
	return name
}

// hardwareAddr is a locally administered address that follows from the IP
// address, so that neighbours need not learn anew when a link is made again.
func hardwareAddr(a netip.Addr) net.HardwareAddr {
	if a.Is4() {
		b := a.As4()
		return net.HardwareAddr{0x02, 'M', b[0], b[1], b[2], b[3]}
	}
	sum := sha256.Sum256(a.AsSlice())
	return net.HardwareAddr{0x02, '6', sum[0], sum[1], sum[2], sum[3]}
}

// hardwareAddr is that of the network's bridge.
func (w Network) hardwareAddr() net.HardwareAddr {
	if w.Gateway.IsValid() {
		return hardwareAddr(w.Gateway)
	}
	return hardwareAddr(w.Gateway6)
}

// hardwareAddr is that of the sandbox's end of the link.
func (a Attachment) hardwareAddr() (net.HardwareAddr, error) {
	switch {
	case a.MAC != "":
		mac, err := net.ParseMAC(a.MAC)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
			return nil, fmt.Errorf("%.40q is not a unicast MAC address", a.MAC)
		}
		return mac, nil
	case a.Network.Driver == driverIPvlan:
		return nil, nil // it has that of its parent
	case a.Address.IsValid():
		return hardwareAddr(a.Address), nil
	}
	return hardwareAddr(a.Address6), nil
}

func (w Network) check() error {
	if !isLinkName(bridgePrefix, w.Bridge) {
		return fmt.Errorf("%q is not a margolite bridge name", w.Bridge)
	}
	if !w.Subnet.IsValid() && !w.Subnet6.IsValid() {
		return errors.New("it has no subnet")
	}
	for _, f := range families() {
		subnet, gateway := f.subnet(w), f.gateway(w)
		if !subnet.IsValid() {
			if gateway.IsValid() {
				return fmt.Errorf("gateway %s has no subnet", gateway)
			}
			continue
		}
		if err := f.checkSubnet(subnet); err != nil {
			return err
		}
		if !gateway.IsValid() && !w.isBridge() {
			continue
		}
		if !subnet.Contains(gateway) {
			return fmt.Errorf("gateway %s is outside of subnet %s", gateway, subnet)
		}
	}
	if w.MTU != 0 && (w.MTU < minMTU || w.MTU > maxMTU || w.Subnet6.IsValid() && w.MTU < minMTU6) {
		return fmt.Errorf("an MTU of %d is not possible", w.MTU)
	}
	switch w.Driver {
	case "", driverBridge:
		return nil
	case driverMacvlan, driverIPvlan:
		if err := checkInterface(w.Parent); err != nil {
			return err
		}
		_, err := newLink(w, netlink.LinkAttrs{})
		return err
	}
	return fmt.Errorf("unknown driver %.40q", w.Driver)
}

// checkSubnet keeps out what is no subnet or leaves no room for a replica.
func (f *family) checkSubnet(p netip.Prefix) error {
	kind := "an IPv4"
	if f.size == net.IPv6len {
		kind = "an IPv6"
	}
	if !p.IsValid() || !f.has(p.Addr()) || p.Addr().Is4In6() || p != p.Masked() || p.Addr().IsMulticast() || p.Addr().IsLoopback() {
		return fmt.Errorf("%s is not %s subnet", p, kind)
	}
	if p.Bits() < minSubnetBits || p.Bits() > p.Addr().BitLen()-2 {
		return fmt.Errorf("subnet %s is too large or too small", p)
	}
	return nil
}

// checkInterface keeps names of links from being read as something else.
func checkInterface(name string) error {
	if len(name) >= unix.IFNAMSIZ || checkPathName(name) != nil || name == "lo" || name == "all" || name == "default" {
		return fmt.Errorf("%.40q is not an interface name", name)
	}
	return nil
}

func (s Sandbox) check() error {
	if err := s.checkIdentity(); err != nil {
		return err
	}
	if s.Host && len(s.Attached) > 0 {
		return errors.New("it is on the network of the host and on others")
	}
	if len(s.Attached) > maxLinks {
		return fmt.Errorf("%d networks are too many", len(s.Attached))
	}
	for i, a := range s.Attached {
		err := a.check()
		for _, b := range s.Attached[:i] {
			if b.Network.Name == a.Network.Name || b.Network.Bridge == a.Network.Bridge {
				err = errors.Join(err, errors.New("it is attached to it twice"))
			}
			if a.Interface != "" && b.Interface == a.Interface {
				err = errors.Join(err, fmt.Errorf("two links are named %s", a.Interface))
			}
		}
		if err != nil {
			return fmt.Errorf("network %s: %w", a.Network.Name, err)
		}
	}
	return nil
}

func (a Attachment) check() error {
	if err := a.Network.check(); err != nil {
		return err
	}
	if !a.Address.IsValid() && !a.Address6.IsValid() {
		return errors.New("it has no address")
	}
	for _, f := range families() {
		addr, subnet, gateway := a.Address, f.subnet(a.Network), f.gateway(a.Network)
		if f.size == net.IPv6len {
			addr = a.Address6
		}
		if addr.IsValid() && (!subnet.IsValid() || !subnet.Contains(addr) || addr == gateway) {
			return fmt.Errorf("address %s is not in subnet %s", addr, subnet)
		}
	}
	for _, addr := range a.Further {
		if !addr.IsLinkLocalUnicast() || addr.Zone() != "" || addr.Is4In6() {
			return fmt.Errorf("%s is not a link-local address", addr)
		}
	}
	if a.Interface != "" {
		if err := checkInterface(a.Interface); err != nil {
			return err
		}
	}
	for _, setting := range a.Sysctls {
		if _, _, err := linkSysctl(setting, "eth0"); err != nil {
			return err
		}
	}
	_, err := a.hardwareAddr()
	return err
}

// checkIdentity looks at what names the sandbox, which is all that removing it
// takes.
func (s Sandbox) checkIdentity() error {
	if err := checkPathName(s.Project); err != nil {
		return fmt.Errorf("project: %w", err)
	}
	if err := checkPathName(s.Service); err != nil {
		return fmt.Errorf("service: %w", err)
	}
	if s.Number < 0 {
		return fmt.Errorf("%d is not the number of a replica", s.Number)
	}
	return nil
}

// checkPathName keeps names that become part of a path from leading elsewhere.
func checkPathName(name string) error {
	if name == "" || name[0] == '.' || strings.ContainsFunc(name, notNameCharacter) {
		return fmt.Errorf("%.80q is not a name", name)
	}
	return nil
}

const nameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

func notNameCharacter(r rune) bool { return !strings.ContainsRune(nameCharacters, r) }
