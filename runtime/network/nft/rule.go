package nft

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// Rule is one of a chain.
type Rule struct {
	Exprs   []Expr
	Comment string // for people, at most 253 bytes
}

const (
	commentKind = 0 // NFTNL_UDATA_RULE_COMMENT
	maxComment  = 253
)

// AddRule adds a rule behind those that the chain has.
func (b *Batch) AddRule(c Chain, r Rule) {
	m := message(unix.NFT_MSG_NEWRULE, c.Table.Family)
	m.Flags = unix.NLM_F_CREATE | unix.NLM_F_APPEND
	m.Text(unix.NFTA_RULE_TABLE, c.Table.Name)
	m.Text(unix.NFTA_RULE_CHAIN, c.Name)
	m.Nest(unix.NFTA_RULE_EXPRESSIONS, func() {
		for _, e := range r.Exprs {
			m.Nest(unix.NFTA_LIST_ELEM, func() { e.encode(&m.Attributes) })
		}
	})
	if comment := r.Comment[:min(len(r.Comment), maxComment)]; comment != "" {
		// As nft writes it: kind, length, and the text with a NUL behind.
		m.Bytes(unix.NFTA_RULE_USERDATA, append([]byte{commentKind, byte(len(comment) + 1)}, comment+"\x00"...)...)
	}
	b.add("rule of chain "+c.Name, m)
}

// Rules are those of a chain; none where it is not there.
func (c *Conn) Rules(of Chain) ([]Rule, error) {
	m := message(unix.NFT_MSG_GETRULE, of.Table.Family)
	m.Text(unix.NFTA_RULE_TABLE, of.Table.Name)
	m.Text(unix.NFTA_RULE_CHAIN, of.Name)
	return netlink.List(c.Conn, m, func(data []byte) (Rule, bool, error) {
		r, err := readRule(data)
		return r, true, err
	})
}

func readRule(data []byte) (r Rule, err error) {
	attributes, _, err := attributesOf(data)
	if err != nil {
		return Rule{}, err
	}
	err = attributes.Each(func(kind uint16, v netlink.Value) error {
		switch kind {
		case unix.NFTA_RULE_USERDATA:
			r.Comment = commentIn(v)
		case unix.NFTA_RULE_EXPRESSIONS:
			return v.Each(func(_ uint16, v netlink.Value) error {
				e, err := readExpr(v)
				r.Exprs = append(r.Exprs, e)
				return err
			})
		}
		return nil
	})
	return r, err
}

func readExpr(v netlink.Value) (e Expr, err error) {
	err = v.Each(func(kind uint16, v netlink.Value) error {
		switch kind {
		case unix.NFTA_EXPR_NAME:
			e.name = v.Text()
		case unix.NFTA_EXPR_DATA:
			e.data = bytes.Clone(v)
		}
		return nil
	})
	return e, err
}

// commentIn reads what programs keep with a rule: parts of a kind, a length and
// so many bytes.
func commentIn(data netlink.Value) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		value := data[2 : 2+int(data[1])]
		if data[0] == commentKind {
			return value.Text()
		}
		data = data[2+len(value):]
	}
	return ""
}
