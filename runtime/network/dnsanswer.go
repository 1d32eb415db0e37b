package network

import (
	"bytes"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/margolite/margolite/runtime/limit"
)

const (
	maxQuery    = 1232    // passes every network unfragmented
	maxMessage  = 4 << 10 // of a UDP answer
	minMessage  = 512     // accepted by every client
	maxStream   = 64<<10 - 1
	dnsTTL      = 10 // seconds: replicas change with their project
	headerSize  = 12
	optSize     = 11
	addressSize = 12 // of an answer, without the address itself
)

type question struct {
	header dnsmessage.Header
	dnsmessage.Question
	name  string // in lower case, without the last dot
	limit int    // size limit of the answer in bytes
	edns  bool
	slot  *limit.Slot // while it is forwarded
}

// parseQuestion parses a query; ok is false if the message is none. A code other than
// success is the answer to a query that cannot be answered otherwise.
func parseQuestion(message []byte, stream bool) (q question, code dnsmessage.RCode, ok bool) {
	var p dnsmessage.Parser
	header, err := p.Start(message)
	if err != nil || header.Response {
		return q, 0, false
	}
	q.header, q.limit = header, minMessage
	if stream {
		q.limit = maxStream
	}
	if header.OpCode != 0 {
		return q, dnsmessage.RCodeNotImplemented, true
	}
	all, err := p.AllQuestions()
	if err != nil || len(all) != 1 {
		return q, dnsmessage.RCodeFormatError, true
	}
	q.Question = all[0]
	q.name = strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, dnsmessage.RCodeFormatError, true
	}
	for range 4 { // an OPT record is among the first, if present
		h, err := p.AdditionalHeader()
		if err != nil {
			break
		}
		if h.Type == dnsmessage.TypeOPT {
			q.edns = true
			if !stream {
				q.limit = min(max(int(h.Class), minMessage), maxMessage)
			}
			break
		}
		if p.SkipAdditional() != nil {
			break
		}
	}
	return q, dnsmessage.RCodeSuccess, true
}

// local answers from the hosts file of the sandbox; nil for unknown names.
func (z *zone) local(q question) []byte {
	if q.Class != dnsmessage.ClassINET {
		return nil
	}
	v := z.view.Load()
	hosts := v.files.content(hostsName)
	if addr, ok := reverseName(q.name); ok {
		return v.reverse(q, hosts, addr)
	}
	addrs := lookup(hosts, q.name)
	for _, at := range v.Attached {
		if len(addrs) > 0 {
			break
		}
		// As in Docker, the name of a network may follow that of a service.
		if name, ok := strings.CutSuffix(q.name, "."+strings.ToLower(at.Network.Name)); ok {
			addrs = slices.DeleteFunc(lookup(hosts, name), func(a netip.Addr) bool { return !at.Network.contains(a) })
		}
	}
	if len(addrs) == 0 {
		return nil
	}
	return q.addresses(z.wanted(q, addrs))
}

// localAfterAll answers a name with a search domain that no nameserver knows.
func (z *zone) localAfterAll(q question) []byte {
	v := z.view.Load()
	for _, domain := range v.resolver(readResolvConf(z.dns.resolvConf)).search {
		name, ok := strings.CutSuffix(q.name, "."+strings.ToLower(domain))
		if !ok || strings.Contains(name, ".") || q.Class != dnsmessage.ClassINET {
			continue
		}
		if addrs := lookup(v.files.content(hostsName), name); len(addrs) > 0 {
			return q.addresses(z.wanted(q, addrs))
		}
	}
	return nil
}

// wanted returns the addresses of the requested family, starting with another one each time.
func (z *zone) wanted(q question, addrs []netip.Addr) []netip.Addr {
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool {
		return !(q.Type == dnsmessage.TypeA && a.Is4() || q.Type == dnsmessage.TypeAAAA && a.Is6())
	})
	if len(addrs) < 2 {
		return addrs
	}
	first := int(z.turn.Add(1) % uint32(len(addrs)))
	return append(slices.Clone(addrs[first:]), addrs[:first]...)
}

// reverse answers for an address. Other nameservers do not know addresses of our networks.
func (v *view) reverse(q question, hosts []byte, addr netip.Addr) []byte {
	if name := reverseLookup(hosts, addr); name != "" {
		return q.pointer(name)
	}
	if slices.ContainsFunc(v.Attached, func(a Attachment) bool { return a.Network.contains(addr) }) {
		return q.failure(dnsmessage.RCodeNameError)
	}
	return nil
}

// addresses answers with addresses; without any, that the name has none of this type.
func (q question) addresses(addrs []netip.Addr) []byte {
	header := q.reply(dnsmessage.RCodeSuccess)
	room := q.limit - headerSize - len(q.Name.String()) - 6 - optSize
	for i, a := range addrs {
		if room -= addressSize + a.BitLen()/8; room < 0 {
			header.Truncated = true
			addrs = addrs[:i]
			break
		}
	}
	return q.build(header, func(b *dnsmessage.Builder, h dnsmessage.ResourceHeader) error {
		for _, a := range addrs { // all of the requested type
			if err := b.UnknownResource(h, dnsmessage.UnknownResource{Type: q.Type, Data: a.AsSlice()}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (q question) pointer(name string) []byte {
	target, err := dnsmessage.NewName(name + ".")
	if err == nil && q.Type == dnsmessage.TypePTR {
		if answer := q.build(q.reply(dnsmessage.RCodeSuccess), func(b *dnsmessage.Builder, h dnsmessage.ResourceHeader) error {
			return b.PTRResource(h, dnsmessage.PTRResource{PTR: target})
		}); answer != nil {
			return answer
		}
	}
	return q.addresses(nil) // also for labels that only hosts files can hold
}

func (q question) failure(code dnsmessage.RCode) []byte { return q.build(q.reply(code), nil) }

func (q question) reply(code dnsmessage.RCode) dnsmessage.Header {
	return dnsmessage.Header{
		ID: q.header.ID, Response: true, OpCode: q.header.OpCode, RCode: code,
		RecursionDesired: q.header.RecursionDesired, RecursionAvailable: true,
	}
}

func (q question) build(header dnsmessage.Header, answers func(*dnsmessage.Builder, dnsmessage.ResourceHeader) error) []byte {
	b := dnsmessage.NewBuilder(make([]byte, 0, 128), header)
	b.EnableCompression()
	err := b.StartQuestions()
	if err == nil && q.Name.Length > 0 {
		err = b.Question(q.Question)
	}
	if err == nil {
		err = b.StartAnswers()
	}
	if err == nil && answers != nil {
		err = answers(&b, dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: dnsTTL})
	}
	if err == nil && q.edns {
		var opt dnsmessage.ResourceHeader
		if err = b.StartAdditionals(); err == nil {
			err = opt.SetEDNS0(maxMessage, dnsmessage.RCodeSuccess, false)
		}
		if err == nil {
			err = b.OPTResource(opt, dnsmessage.OPTResource{})
		}
	}
	message, finishErr := b.Finish()
	if err != nil || finishErr != nil {
		return nil // a name that cannot be packed again
	}
	return message
}

func lookup(hosts []byte, name string) []netip.Addr {
	if name == "" {
		return nil
	}
	var addrs []netip.Addr
	eachHost(hosts, func(addr, names []byte) bool {
		for field := range bytes.FieldsSeq(names) {
			if !bytes.EqualFold(field, []byte(name)) {
				continue
			}
			if a, err := netip.ParseAddr(string(addr)); err == nil && !slices.Contains(addrs, a.Unmap()) {
				addrs = append(addrs, a.Unmap())
			}
			break
		}
		return true
	})
	return addrs
}

func reverseLookup(hosts []byte, addr netip.Addr) (name string) {
	eachHost(hosts, func(text, names []byte) bool {
		if a, err := netip.ParseAddr(string(text)); err != nil || a.Unmap() != addr {
			return true
		}
		for field := range bytes.FieldsSeq(names) {
			name = string(field)
			return false
		}
		return true
	})
	return name
}

// eachHost calls f with the address and names of each line until f returns false.
func eachHost(hosts []byte, f func(addr, names []byte) bool) {
	for line := range bytes.Lines(hosts) {
		line, _, _ = bytes.Cut(line, []byte("#"))
		line = bytes.TrimSpace(line)
		if end := bytes.IndexAny(line, " \t"); end > 0 && !f(line[:end], line[end:]) {
			return
		}
	}
}

// reverseName parses a name below in-addr.arpa or ip6.arpa.
func reverseName(name string) (netip.Addr, bool) {
	if digits, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		labels := strings.Split(digits, ".")
		if len(labels) != 4 {
			return netip.Addr{}, false
		}
		slices.Reverse(labels)
		addr, err := netip.ParseAddr(strings.Join(labels, "."))
		return addr, err == nil && addr.Is4()
	}
	digits, ok := strings.CutSuffix(name, ".ip6.arpa")
	labels := strings.Split(digits, ".")
	if !ok || len(labels) != 32 {
		return netip.Addr{}, false
	}
	var b [16]byte
	for i, label := range labels {
		nibble, err := strconv.ParseUint(label, 16, 4)
		if err != nil || len(label) != 1 {
			return netip.Addr{}, false
		}
		at := 31 - i
		b[at/2] |= byte(nibble) << (4 * (1 - at%2))
	}
	return netip.AddrFrom16(b).Unmap(), true
}
