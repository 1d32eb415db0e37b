package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// Batch are changes that are made together or not at all. The zero value is
// empty.
type Batch struct {
	messages []*netlink.Message
	about    []string // what each is about, for errors
}

func (b *Batch) add(about string, m *netlink.Message) {
	b.messages, b.about = append(b.messages, m), append(b.about, about)
}

// AddTable adds a table, which may be there already.
func (b *Batch) AddTable(t Table) { b.addTable(t, 0) }

// AddOwnedTable adds a table that belongs to the connection: nobody else can
// change it, and it ends with the connection. That takes Linux 5.12.
func (b *Batch) AddOwnedTable(t Table) {
	const owned = 2 // NFT_TABLE_F_OWNER
	b.addTable(t, owned)
}

func (b *Batch) addTable(t Table, flags uint32) {
	m := message(unix.NFT_MSG_NEWTABLE, t.Family)
	m.Flags = unix.NLM_F_CREATE
	m.Text(unix.NFTA_TABLE_NAME, t.Name)
	m.Big32(unix.NFTA_TABLE_FLAGS, flags)
	b.add("table "+t.Name, m)
}

// RemoveTable removes a table with all that is in it.
func (b *Batch) RemoveTable(t Table) {
	m := message(unix.NFT_MSG_DELTABLE, t.Family)
	m.Text(unix.NFTA_TABLE_NAME, t.Name)
	b.add("table "+t.Name, m)
}

// AddChain adds a chain.
func (b *Batch) AddChain(c Chain) {
	m := message(unix.NFT_MSG_NEWCHAIN, c.Table.Family)
	m.Flags = unix.NLM_F_CREATE
	m.Text(unix.NFTA_CHAIN_TABLE, c.Table.Name)
	m.Text(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Base != nil {
		m.Nest(unix.NFTA_CHAIN_HOOK, func() {
			m.Big32(unix.NFTA_HOOK_HOOKNUM, c.Base.Hook)
			m.Big32(unix.NFTA_HOOK_PRIORITY, uint32(c.Base.Priority))
		})
		m.Big32(unix.NFTA_CHAIN_POLICY, uint32(c.Base.Policy))
		m.Text(unix.NFTA_CHAIN_TYPE, c.Base.Type)
	}
	b.add("chain "+c.Name, m)
}

// Commit has the kernel do all of the batch or, with an error for each part
// that cannot be done, nothing.
func (c *Conn) Commit(b *Batch) error {
	if len(b.messages) == 0 {
		return nil
	}
	bound := func(kind uint16) *netlink.Message {
		return &netlink.Message{Type: kind, Header: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}}
	}
	// The kernel answers when it has done with all of it: for each part that
	// fails, and for one that wants to hear of its success, which is the last.
	// So many answers as there are parts could be more than the socket takes.
	b.messages[len(b.messages)-1].Flags |= unix.NLM_F_ACK
	all := append([]*netlink.Message{bound(unix.NFNL_MSG_BATCH_BEGIN)}, b.messages...)
	first, err := c.Send(append(all, bound(unix.NFNL_MSG_BATCH_END))...)
	if err != nil {
		return err
	}
	var failed []error
	err = c.Outcomes(func(sequence uint32, outcome error) (bool, error) {
		part, parts := sequence-first, uint32(len(b.messages))
		switch {
		case part > parts: // also where it is less than the first
			return true, nil // of an earlier request
		case part == 0:
			return false, outcome // of the whole
		case outcome != nil && len(failed) < maxErrors:
			failed = append(failed, fmt.Errorf("%s: %w", b.about[part-1], outcome))
		}
		return part < parts, nil
	})
	return errors.Join(append(failed, err)...)
}

// maxErrors is how many parts that failed are told: the first ones tell why the
// others did.
const maxErrors = 5
