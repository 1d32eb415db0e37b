package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	nl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/contain"
)

// newRules returns the ruleset of the network namespace of the thread that calls
// its methods. Each of them has a connection of its own.
func newRules() *nftables.Conn {
	c, _ := nftables.New(nftables.WithSockOptions(bounded)) // it dials later, and so does not fail
	return c
}

// maxTransaction bounds, in bytes, what is sent at once and its answers, of which
// the library wants one for each part.
const maxTransaction = 16 << 20

// bounded prepares a connection: nothing takes longer than patience, and nobody
// but the kernel is listened to. In the namespace of a container others may send
// as well, and the library does not look at who sent what it receives.
func bounded(c *nl.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var connected error
	err = raw.Control(func(fd uintptr) {
		connected = unix.Connect(int(fd), &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	})
	_ = c.SetOption(nl.ExtendedAcknowledge, true) // the kernel's words with errors, where it has them
	return errors.Join(err, connected, c.SetReadBuffer(maxTransaction), c.SetWriteBuffer(maxTransaction),
		c.SetDeadline(time.Now().Add(patience)))
}

// commit has the kernel do all that was asked of the connection, or nothing. The
// error is that of the first part that failed: it says why the others did.
func commit(c *nftables.Conn) error {
	err := c.Flush()
	if first := (*nl.OpError)(nil); errors.As(err, &first) {
		return first
	}
	return err
}

// listed lists a part of the ruleset, again where it changed meanwhile: the
// library does not tell that the kernel noticed. Its decoders trust what others
// keep with their rules, so a panic is an error.
func listed[T any](what string, list func() ([]T, error)) ([]T, error) {
	return steady(what, func() (all []T, err error) {
		before, err := generation()
		if err != nil {
			return nil, err
		}
		if err := contain.Call(func() (err error) {
			all, err = list()
			return err
		}); err != nil {
			return nil, err
		}
		after, err := generation()
		if err == nil && after != before {
			err = unix.EINTR
		}
		return all, err
	})
}

// generation is a number that every change of the ruleset counts up.
func generation() (id uint32, err error) {
	c, err := nl.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := bounded(c); err != nil {
		return 0, err
	}
	answer, err := c.Execute(nftMessage(unix.NFT_MSG_GETGEN, nftables.TableFamilyUnspecified, 0, nil))
	const header = 4 // struct nfgenmsg
	if err != nil || len(answer) == 0 || len(answer[0].Data) < header {
		return 0, err
	}
	attributes, err := nl.NewAttributeDecoder(answer[0].Data[header:])
	if err != nil {
		return 0, err
	}
	attributes.ByteOrder = binary.BigEndian
	for attributes.Next() {
		if attributes.Type() == unix.NFTA_GEN_ID {
			id = attributes.Uint32()
		}
	}
	return id, attributes.Err()
}

func nftMessage(kind uint16, f nftables.TableFamily, flags nl.HeaderFlags, attributes []byte) nl.Message {
	return nl.Message{
		Header: nl.Header{Type: nl.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: nl.Request | flags},
		Data:   append([]byte{byte(f), unix.NFNETLINK_V0, 0, 0}, attributes...),
	}
}

type tableKey struct {
	family nftables.TableFamily
	name   string
}

func keyOf(t *nftables.Table) tableKey { return tableKey{t.Family, t.Name} }

func (k tableKey) table() *nftables.Table { return &nftables.Table{Family: k.family, Name: k.name} }

// String is how nft names the table.
func (k tableKey) String() string { return familyName(k.family) + " " + k.name }

func familyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	case nftables.TableFamilyINet:
		return "inet"
	}
	return fmt.Sprintf("family %d", f)
}

func listTables(c *nftables.Conn) ([]tableKey, error) {
	all, err := listed("tables", c.ListTables)
	keys := make([]tableKey, len(all))
	for i, t := range all {
		keys[i] = keyOf(t)
	}
	return keys, err
}

// rulesOf lists those of a chain; none where it is not there.
func rulesOf(c *nftables.Conn, chain *nftables.Chain) ([]*nftables.Rule, error) {
	return listed("rules of chain "+chain.Name, func() ([]*nftables.Rule, error) { return c.GetRules(chain.Table, chain) })
}

// elementsOf fails with unix.ENOENT where there is no such set.
func elementsOf(c *nftables.Conn, s *nftables.Set) ([]nftables.SetElement, error) {
	return listed("set "+s.Name, func() ([]nftables.SetElement, error) {
		all, err := c.GetSetElements(s)
		if err != nil { // in which the library hides the kernel's number
			if _, missing := c.GetSetByName(s.Table, s.Name); errors.Is(missing, unix.ENOENT) {
				err = missing
			}
		}
		return all, err
	})
}

const maxComment = 253 // bytes

// commentOf reads what programs keep with a rule: parts of a kind, a length and
// so many bytes. The library's reader trusts the lengths.
func commentOf(r *nftables.Rule) string {
	for data := r.UserData; len(data) >= 2 && len(data) >= 2+int(data[1]); {
		value := data[2 : 2+int(data[1])]
		if userdata.Type(data[0]) == userdata.TypeComment {
			text, _, _ := bytes.Cut(value, []byte{0})
			return string(text)
		}
		data = data[2+len(value):]
	}
	return ""
}

// elementsPerMessage keeps the list within one attribute, of 64 KiB.
const elementsPerMessage = 256

func addElements(c *nftables.Conn, s *nftables.Set, elements []nftables.SetElement) error {
	for len(elements) > 0 {
		part := elements[:min(elementsPerMessage, len(elements))]
		elements = elements[len(part):]
		if err := c.SetAddElements(s, part); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	return nil
}
