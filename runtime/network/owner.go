package network

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/margolite/margolite/runtime/tree"
)

// owner is the margolite that something belongs to. Zero: unknown, it may be anyone's.
type owner struct {
	id  string // hash of the state directory
	dir string // the state directory, for people; may be cut short
}

const (
	ownerDigits = 8
	tagDigits   = 4 // of the id, at the beginning of bridge names

	maxOwnerDir = 120 // bytes of a directory in a mark
	maxMarked   = 100 // bytes of a network's name in a mark
	ownerPrefix = "@" // before the id, in the alias of a link
	mountSource = "margolite:"
	ownerChain  = "owner_" // before the id, in the name of a chain
)

// ownerOf derives the owner from its state directory, whatever that contains.
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

// ErrOtherOwner says that something belongs to another margolite.
var ErrOtherOwner = errors.New("it belongs to workloads of another state directory")

func otherOwner(o owner) error { return fmt.Errorf("%w: that of %v", ErrOtherOwner, o) }

// mark is the alias of a link on the host for this network. The kernel allows 255 bytes.
func (o owner) mark(network string) string {
	return aliasPrefix + marked(network) + " " + ownerPrefix + o.id + " " + o.dir
}

// marked shortens the name of a network for a mark.
func marked(network string) string {
	if len(network) <= maxMarked {
		return network
	}
	sum := sha256.Sum256([]byte(network))
	return network[:maxMarked-hashDigits] + hex.EncodeToString(sum[:])[:hashDigits]
}

// readMark returns the network and the owner of a link; zero if it has no mark.
func readMark(link netlink.Link) (network string, o owner) {
	rest, ok := strings.CutPrefix(link.Attrs().Alias, aliasPrefix)
	network, rest, _ = strings.Cut(rest, " ")
	id, owned := strings.CutPrefix(rest, ownerPrefix)
	if !ok || !owned {
		return "", owner{}
	}
	o.id, o.dir, _ = strings.Cut(id, " ")
	return network, o
}

func (o owner) isOthers(link netlink.Link) bool {
	_, by := readMark(link)
	return by.known() && !by.is(o)
}

func (o owner) ensureMark(at *survey, link netlink.Link, network string) error {
	now := link.Attrs()
	if _, by := readMark(link); by.known() && !by.is(o) {
		return fmt.Errorf("link %s: %w", now.Name, otherOwner(by))
	}
	mark := o.mark(network)
	if now.Alias == mark {
		return nil
	}
	return at.change("link "+now.Name+" is not marked", "mark link "+now.Name, func() error {
		now.Alias = mark
		return at.c.LinkSetAlias(link, mark)
	})
}

// bridgeName begins with a part of the owner's id, which identifies a bridge without a mark.
func (o owner) bridgeName(network string) string {
	sum := sha256.Sum256([]byte(o.id + "\x00" + network))
	return bridgePrefix + o.id[:tagDigits] + hex.EncodeToString(sum[:])[:hashDigits-tagDigits]
}

// source is what the kernel shows as the device of the owner's mounts.
func (o owner) source() string { return mountSource + o.id + ":" + o.dir }

// checkRunDir refuses a run directory in which another owner has sandboxes.
func (o owner) checkRunDir(dir string) (err error) {
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	failed := tree.EachMount(func(at, device string) (more bool) {
		if mark, ok := strings.CutPrefix(device, mountSource); ok && strings.HasPrefix(at, filepath.Join(dir, "hosts")+"/") {
			id, of, _ := strings.Cut(mark, ":")
			if other := (owner{id, of}); !other.is(o) {
				err = fmt.Errorf("cannot use run directory %s: %w", dir, otherOwner(other))
			}
		}
		return err == nil
	})
	if failed != nil {
		return fmt.Errorf("cannot determine who owns the run directory: %w", failed)
	}
	return err
}

// isRulesTable reports whether a table has the name of some margolite's rules.
func isRulesTable(t tableKey) bool {
	return (t.family == nftables.TableFamilyIPv4 || t.family == nftables.TableFamilyIPv6) &&
		(t.name == tableName || strings.HasPrefix(t.name, tableName+"-") && len(t.name) == len(tableName)+1+ownerDigits)
}

// own is the owner's table: the marked one, else the plain name unless another owner has it.
func (o owner) own(w firewall, f *family) tableKey {
	plain := tableKey{f.table, tableName}
	named := tableKey{f.table, tableName + "-" + o.id}
	if w.owners[named].is(o) || slices.Contains(w.tables, plain) && !w.owners[plain].is(o) {
		return named
	}
	return plain
}

func setOf(f *family, table tableKey, name string) *nftables.Set {
	r := newRuleset(f, table, owner{}, nil, nil, hostForwarding{}, unguarded)
	i := slices.IndexFunc(r.sets, func(s *set) bool { return s.Name == name })
	return r.sets[i].Set
}

// dirOf completes the owner of a table with its directory.
func dirOf(conn *nftables.Conn, table tableKey, o owner) owner {
	rules, err := rulesOf(conn, &nftables.Chain{Table: table.table(), Name: ownerChain + o.id})
	if err == nil && len(rules) > 0 {
		dir, _, _ := strings.Cut(strings.TrimPrefix(commentOf(rules[0]), ownerAbout), " [")
		o.dir = dir
	}
	return o
}

const ownerAbout = "rules for workloads of "
