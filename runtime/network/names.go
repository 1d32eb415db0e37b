package network

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

const (
	bridgePrefix = "mgl-"
	vethPrefix   = "mgv-"
	hashDigits   = 11 // with the prefix 15 characters, the maximum for a link's name

	// The first digits of a veth's name stand for the replica, the others for the network.
	replicaDigits = 8
	vethDigits    = "0123456789abcdefghijklmnopqrstuv"

	aliasPrefix = "margolite " // of the aliases of our links

	maxFileName = 200 // bytes, of the 255 that a file system takes
)

// isLinkName reports whether we made this name for a network or a sandbox.
func isLinkName(prefix, name string) bool {
	allowed := "0123456789abcdef"
	if prefix == vethPrefix {
		allowed = vethDigits
	}
	digits, ok := strings.CutPrefix(name, prefix)
	return ok && len(digits) == hashDigits && strings.Trim(digits, allowed) == ""
}

// isOurs reports whether the name is one that this package gives links of the host.
func isOurs(link string) bool {
	return isLinkName(bridgePrefix, link) || isLinkName(vethPrefix, link)
}

// linkPrefix begins the names of the replica's links on the host.
func (s Sandbox) linkPrefix(o owner) string {
	return vethPrefix + hashed(replicaDigits, s.Project, s.Service, strconv.Itoa(s.Number), o.id)
}

// links names the host's ends of the replica's links; "" for those that have none. Unless
// two hashes collide, a name depends on its network only, not on the order.
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

func hashed(digits int, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return base32.NewEncoding(vethDigits).EncodeToString(sum[:])[:digits]
}

// file names the sandbox under RunDir uniquely: the separator occurs in no name.
func (s Sandbox) file() string {
	name := s.Project + "+" + s.Service + "+" + strconv.Itoa(s.Number)
	if len(name) > maxFileName {
		digits := hashed(2*hashDigits, name)
		name = name[:maxFileName-len(digits)] + digits
	}
	return name
}

// hardwareAddr follows from the IP address, so neighbours stay right when a link is remade.
func hardwareAddr(a netip.Addr) net.HardwareAddr {
	if a.Is4() {
		b := a.As4()
		return net.HardwareAddr{0x02, 'M', b[0], b[1], b[2], b[3]}
	}
	sum := sha256.Sum256(a.AsSlice())
	return net.HardwareAddr{0x02, '6', sum[0], sum[1], sum[2], sum[3]}
}

func (w Network) hardwareAddr() net.HardwareAddr {
	if w.Gateway.IsValid() {
		return hardwareAddr(w.Gateway)
	}
	return hardwareAddr(w.Gateway6)
}

// hardwareAddr returns the address of the sandbox's end; nil for the parent's.
func (a Attachment) hardwareAddr() (net.HardwareAddr, error) {
	switch {
	case a.MAC != "":
		return net.ParseMAC(a.MAC)
	case a.Network.Driver == driverIPvlan:
		return nil, nil
	case a.Address.IsValid():
		return hardwareAddr(a.Address), nil
	}
	return hardwareAddr(a.Address6), nil
}

// check refuses a bridge name that is not of our making, and so may be a link of others.
func (w Network) check() error {
	if !isLinkName(bridgePrefix, w.Bridge) {
		return fmt.Errorf("%q is not a margolite bridge name", w.Bridge)
	}
	return nil
}

// check refuses addresses outside the subnets: a Compose file may not know these.
func (a Attachment) check() error {
	for _, f := range families() {
		addr := a.Address
		if f.size == net.IPv6len {
			addr = a.Address6
		}
		if subnet := f.subnet(a.Network); addr.IsValid() && (!subnet.Contains(addr) || addr == f.gateway(a.Network)) {
			return fmt.Errorf("network %s: address %s is not in subnet %s", a.Network.Name, addr, subnet)
		}
	}
	return nil
}

// checkPathName refuses names that would lead elsewhere as part of a path.
func checkPathName(name string) error {
	if name == "" || name[0] == '.' || strings.ContainsFunc(name, notNameCharacter) {
		return fmt.Errorf("%.80q is not a name", name)
	}
	return nil
}

const nameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

func notNameCharacter(r rune) bool { return !strings.ContainsRune(nameCharacters, r) }
