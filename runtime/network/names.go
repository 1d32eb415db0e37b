package network

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

const (
	bridgePrefix = "mgl-"
	vethPrefix   = "mgv-"
	hashDigits   = 11 // with the prefix 15 characters, all that a link's name may have

	innerLink = "eth0" // the sandbox's end of the veth pair

	maxFileName = 200 // leaves room under the file system's 255
)

// linkName is always the same for the same parts, and short enough.
func linkName(prefix string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return prefix + hex.EncodeToString(sum[:])[:hashDigits]
}

// isLinkName says whether a link of this name was made by linkName.
func isLinkName(prefix, name string) bool {
	digits, ok := strings.CutPrefix(name, prefix)
	return ok && len(digits) == hashDigits && strings.Trim(digits, "0123456789abcdef") == ""
}

func (s Sandbox) link() string {
	return linkName(vethPrefix, s.Project, s.Service, strconv.Itoa(s.Number))
}

// file names the sandbox under RunDir. The separator occurs in no name, so no
// two sandboxes share a file.
func (s Sandbox) file() string {
	return s.Project + "+" + s.Service + "+" + strconv.Itoa(s.Number)
}

// hardwareAddr is a locally administered address that follows from the IP
// address, so that neighbours need not learn anew when a link is made again.
func hardwareAddr(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x02, 'M', b[0], b[1], b[2], b[3]}
}

func (w Network) check() error {
	switch {
	case !isLinkName(bridgePrefix, w.Bridge):
		return fmt.Errorf("%q is not the name of a bridge of ours", w.Bridge)
	case !w.Subnet.IsValid() || !w.Subnet.Addr().Is4() || w.Subnet != w.Subnet.Masked():
		return fmt.Errorf("%s is not an IPv4 subnet", w.Subnet)
	case w.Subnet.Bits() < minSubnetBits || w.Subnet.Bits() > maxSubnetBits:
		return fmt.Errorf("subnet %s is too large or too small", w.Subnet)
	case !w.Subnet.Contains(w.Gateway):
		return fmt.Errorf("gateway %s is outside of subnet %s", w.Gateway, w.Subnet)
	}
	return nil
}

func (s Sandbox) check() error {
	if err := s.checkIdentity(); err != nil {
		return err
	}
	if err := s.Network.check(); err != nil {
		return err
	}
	switch {
	case !s.Network.Subnet.Contains(s.Address) || s.Address == s.Network.Gateway:
		return fmt.Errorf("address %s is not one of subnet %s", s.Address, s.Network.Subnet)
	case s.MAC != nil && len(s.MAC) != 6:
		return fmt.Errorf("%q is not a hardware address", s.MAC)
	case s.MAC != nil && s.MAC[0]&1 != 0:
		return fmt.Errorf("hardware address %s belongs to a group", s.MAC)
	}
	if s.Hostname != "" {
		return checkHostName(s.Hostname)
	}
	return nil
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
	if s.Number < 0 || len(s.file()) > maxFileName {
		return fmt.Errorf("replica %d of %q: the name does not fit", s.Number, s.Service)
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

// checkHostName keeps out of the hosts file whatever would add a line, a
// comment or a second name to it, or turn localhost around.
func checkHostName(name string) error {
	if len(name) > 253 || strings.ContainsFunc(name, notNameCharacter) || strings.EqualFold(name, "localhost") {
		return fmt.Errorf("%.80q is not a host name", name)
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' {
			return fmt.Errorf("%.80q is not a host name", name)
		}
	}
	return nil
}
