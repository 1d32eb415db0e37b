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

// newRules returns a connection for the calling thread's namespace, with a socket per call.
func newRules() *nftables.Conn {
	c, _ := nftables.New(nftables.WithSockOptions(bounded)) // it dials later, and so does not fail
	return c
}

// maxTransaction limits, in bytes, a transaction and its answers, one for each part.
const maxTransaction = 16 << 20

// bounded sets a deadline, and makes the kernel the only possible sender: in a container's
// namespace others may send as well, and the library does not check.
func bounded(c *nl.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var connected error
	err = raw.Control(func(fd uintptr) {
		connected = unix.Connect(int(fd), &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	})
	_ = c.SetOption(nl.ExtendedAcknowledge, true) // detailed error messages, where the kernel has them
	return errors.Join(err, connected, c.SetReadBuffer(maxTransaction), c.SetWriteBuffer(maxTransaction),
		c.SetDeadline(time.Now().Add(patience)))
}

// commit has the kernel do all that was queued on the connection, or nothing. The error is
// that of the first part that failed, which is the cause of the others.
func commit(c *nftables.Conn) error {
	err := c.Flush()
	if first := (*nl.OpError)(nil); errors.As(err, &first) {
		return first
	}
	return err
}

// listed lists a part of the ruleset, again if it changed meanwhile, which the library does
// not notice. Its decoders trust what others store with their rules, so a panic is an error.
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

// generation returns a number that every change of the ruleset increments.
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

func rulesOf(c *nftables.Conn, chain *nftables.Chain) ([]*nftables.Rule, error) {
	return listed("rules of chain "+chain.Name, func() ([]*nftables.Rule, error) { return c.GetRules(chain.Table, chain) })
}

// elementsOf fails with unix.ENOENT if there is no such set.
func elementsOf(c *nftables.Conn, s *nftables.Set) ([]nftables.SetElement, error) {
	return listed("set "+s.Name, func() ([]nftables.SetElement, error) {
		all, err := c.GetSetElements(s)
		if err != nil { // the library hides the errno in it
			if _, missing := c.GetSetByName(s.Table, s.Name); errors.Is(missing, unix.ENOENT) {
				err = missing
			}
		}
		return all, err
	})
}

const maxComment = 253 // bytes

// commentOf reads the user data of a rule: type, length, bytes. The library trusts lengths.
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

// elementsPerMessage keeps the list within one attribute of 64 KiB.
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
