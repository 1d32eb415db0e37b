package network

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/margolite/margolite/runtime/network/nft"
	"github.com/margolite/margolite/runtime/network/rtnetlink"
)

// owner identifies the margolite that a link, table or mount belongs to. The zero
// value means unknown: releases before this one marked nothing.
type owner struct {
	id  string // of the state directory
	dir string // the state directory, for people; may be cut short
}

const (
	ownerDigits = 8
	tagDigits   = 4 // of them, at the beginning of the names of bridges

	maxOwnerDir = 120 // bytes of a directory that is shown
	maxMarked   = 100 // bytes of the name of a network in a mark
	ownerPrefix = "@" // before the id, in the alias of a link
	mountSource = "margolite:"
	ownerChain  = "owner_" // before the id, in the name of a chain
)

// ownerOf derives the owner from its state directory: the same one after every
// start, and also after the directory was emptied.
func ownerOf(dir string) owner {
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	dir = filepath.Clean(dir)
	sum := sha256.Sum256([]byte(dir))
	printable := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, dir)
	return owner{id: hex.EncodeToString(sum[:])[:ownerDigits], dir: printable[:min(len(printable), maxOwnerDir)]}
}

func (o owner) known() bool { return o.id != "" }

func (o owner) is(p owner) bool { return o.id == p.id }

func (o owner) String() string {
	if !o.known() {
		return "another margolite"
	}
	return "the margolite with the state directory " + o.dir
}

// ErrOtherOwner says that something belongs to the workloads of another state
// directory.
var ErrOtherOwner = errors.New("it belongs to workloads of another state directory")

func otherOwner(o owner) error { return fmt.Errorf("%w: that of %v", ErrOtherOwner, o) }

// mark is the alias of a link of the host that is for the network. The kernel takes
// 255 bytes.
func (o owner) mark(network string) string {
	return aliasPrefix + marked(network) + " " + ownerPrefix + o.id + " " + o.dir
}

// marked is the name of a network as it is in a mark.
func marked(network string) string {
	if len(network) <= maxMarked {
		return network
	}
	sum := sha256.Sum256([]byte(network))
	return network[:maxMarked-hashDigits] + hex.EncodeToString(sum[:])[:hashDigits]
}

// readMark says what a link is for, and whose it is. Without an owner it is of a
// release before this one, if ok.
func readMark(alias string) (network string, o owner, ok bool) {
	rest, ok := strings.CutPrefix(alias, aliasPrefix)
	if !ok {
		return "", owner{}, false
	}
	network, rest, _ = strings.Cut(rest, " ")
	if id, ok := strings.CutPrefix(rest, ownerPrefix); ok {
		o.id, o.dir, _ = strings.Cut(id, " ")
	}
	return network, o, true
}

// ownerOfLink is nobody where the link is not marked.
func ownerOfLink(link rtnetlink.Link) owner {
	_, o, _ := readMark(link.Alias)
	return o
}

// isOthers says whether the link is marked as that of another owner.
func (o owner) isOthers(link rtnetlink.Link) bool {
	p := ownerOfLink(link)
	return p.known() && !p.is(o)
}

// ensureMark marks a link of the host.
func (o owner) ensureMark(c *rtnetlink.Conn, link *rtnetlink.Link, network string) error {
	if o.isOthers(*link) {
		return fmt.Errorf("link %s: %w", link.Name, otherOwner(ownerOfLink(*link)))
	}
	mark := o.mark(network)
	if link.Alias == mark {
		return nil
	}
	if err := c.SetAlias(link.Index, mark); err != nil {
		return fmt.Errorf("cannot mark link %s: %w", link.Name, err)
	}
	link.Alias = mark
	return nil
}

// bridgeName is that of a new network's bridge. It begins with a part of the
// owner's id, by which a bridge is known that was made and not yet marked.
func (o owner) bridgeName(network string) string {
	sum := sha256.Sum256([]byte(o.id + "\x00" + network))
	return bridgePrefix + o.id[:tagDigits] + hex.EncodeToString(sum[:])[:hashDigits-tagDigits]
}

// hasTag says whether a link has such a name of the owner.
func (o owner) hasTag(name string) bool {
	return isLinkName(bridgePrefix, name) && strings.HasPrefix(name, bridgePrefix+o.id[:tagDigits])
}

// source is what the kernel shows as the device of the owner's mounts.
func (o owner) source() string { return mountSource + o.id + ":" + o.dir }

// maxMountLine bounds, in bytes, a line of mountinfo.
const maxMountLine = 1 << 20

// mountEscapes writes a path as mountinfo does, see proc(5).
var mountEscapes = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)

// checkRunDir refuses a run directory in which another owner has sandboxes.
func (o owner) checkRunDir(dir string) error {
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	hosts := mountEscapes.Replace(filepath.Join(dir, "hosts")) + "/"
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return fmt.Errorf("cannot find out whose the run directory is: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxMountLine)
	for lines.Scan() {
		// 36 35 0:41 / /run/margolite/hosts/x rw,nosuid shared:7 - tmpfs margolite:1a2b3c4d:/var/lib/margolite rw
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 2 || !strings.HasPrefix(fields[4], hosts) {
			continue
		}
		if mark, ok := strings.CutPrefix(kind[1], mountSource); ok {
			id, of, _ := strings.Cut(mark, ":")
			if other := (owner{id, of}); !other.is(o) {
				return fmt.Errorf("cannot use run directory %s: %w", dir, otherOwner(other))
			}
		}
	}
	return lines.Err()
}

// tables finds the tables of each margolite: what they are named is no proof of
// whose they are, but the chain that is named after the owner is.
type tables struct {
	all    []nft.Table
	owners map[nft.Table]owner // of those with such a chain; the directory is not known
}

func readTables(conn *nft.Conn, chains []nft.Chain) (tables, error) {
	all, err := conn.Tables(0)
	if err != nil {
		return tables{}, fmt.Errorf("cannot list tables: %w", err)
	}
	t := tables{owners: make(map[nft.Table]owner)}
	for _, table := range all {
		if isRulesTable(table) {
			t.all = append(t.all, table)
		}
	}
	for _, c := range chains {
		if id, ok := strings.CutPrefix(c.Name, ownerChain); ok && slices.Contains(t.all, c.Table) {
			t.owners[c.Table] = owner{id: id}
		}
	}
	return t, nil
}

// isRulesTable says so of those that have the rules of some margolite.
func isRulesTable(t nft.Table) bool {
	return (t.Family == nft.IPv4 || t.Family == nft.IPv6) &&
		(t.Name == tableName || strings.HasPrefix(t.Name, tableName+"-") && len(t.Name) == len(tableName)+1+ownerDigits)
}

// isOurTable says so of all that some margolite makes on a host.
func isOurTable(t nft.Table) bool {
	t.Name = strings.TrimSuffix(t.Name, aliveSuffix)
	return isRulesTable(t)
}

// own is the owner's table of the family: the one with its mark; else the one of
// the plain name, unless somebody else has that.
func (o owner) own(conn *nft.Conn, t tables, f *family, networks []Network) (nft.Table, error) {
	plain := nft.Table{Family: f.table, Name: tableName}
	named := nft.Table{Family: f.table, Name: tableName + "-" + o.id}
	for _, table := range []nft.Table{named, plain} {
		if t.owners[table].is(o) {
			return table, nil
		}
	}
	if !slices.Contains(t.all, plain) {
		return plain, nil
	}
	if t.owners[plain].known() {
		return named, nil
	}
	adopted, err := o.adopts(conn, f, plain, networks)
	if err != nil || !adopted {
		return named, err
	}
	return plain, nil
}

// adopts says whether a table that a release before this one made is the owner's:
// it has bridges of its own, or none that is there any more.
func (o owner) adopts(conn *nft.Conn, f *family, table nft.Table, networks []Network) (bool, error) {
	bridges, err := conn.Elements(elementsOf(f, table, "bridges"))
	if err != nil {
		return false, fmt.Errorf("cannot list bridges of table %s: %w", table.Name, err)
	}
	var links []rtnetlink.Link
	if err := withLinks(func(c *rtnetlink.Conn) (err error) {
		links, err = c.Links()
		return err
	}); err != nil {
		return false, fmt.Errorf("cannot list links: %w", err)
	}
	there := false
	for _, e := range bridges {
		name, _, _ := strings.Cut(string(e.Key), "\x00")
		if slices.ContainsFunc(networks, func(w Network) bool { return w.Bridge == name }) {
			return true, nil
		}
		i := slices.IndexFunc(links, func(l rtnetlink.Link) bool { return l.Name == name })
		if i >= 0 && ownerOfLink(links[i]).is(o) {
			return true, nil
		}
		there = there || i >= 0
	}
	return !there, nil
}

// elementsOf is a set of a table of rules, for listing it.
func elementsOf(f *family, table nft.Table, name string) nft.Set {
	r := newRuleset(f, table, owner{}, nil, nil, nil, unguarded)
	i := slices.IndexFunc(r.sets, func(s *set) bool { return s.Name == name })
	return r.sets[i].Set
}

// dirOf finds out the directory of the owner of a table.
func dirOf(conn *nft.Conn, table nft.Table, o owner) owner {
	rules, err := conn.Rules(nft.Chain{Table: table, Name: ownerChain + o.id})
	if err == nil && len(rules) > 0 {
		dir, _, _ := strings.Cut(strings.TrimPrefix(rules[0].Comment, ownerAbout), " [")
		o.dir = dir
	}
	return o
}

const ownerAbout = "rules for workloads of "
