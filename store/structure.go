package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math"

	bolt "go.etcd.io/bbolt"
)

// The format of bbolt's files, in the byte order of the machine. Positions are
// relative to the element that has them.
//
//	page    id 8, flags 2, count 2, overflow 4, elements
//	branch  position 4, key size 4, child page 8
//	leaf    flags 4, position 4, key size 4, value size 4
//	bucket  root page 8, sequence 8; with root 0 the page itself follows
//	meta    magic 4, version 4, page size 4, flags 4, bucket 16, free list 8,
//	        page count 8, transaction 8, checksum 8
const (
	headerSize  = 16
	elementSize = 16
	bucketSize  = 16
	metaSize    = 64

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10
	bucketFlag   = 0x01

	metaMagic   = 0xED0CDAED
	metaVersion = 2
	noFreelist  = math.MaxUint64

	// maxDepth is more than there are of buckets within buckets.
	maxDepth = 8
)

// visitor sees what is in a database. in is the names of the buckets from the top
// down. A nil function sees nothing; an error ends the reading.
type visitor struct {
	bucket func(in []string, name string, sequence uint64) error
	record func(in []string, key []byte, value func() ([]byte, error)) error
}

// checkStructure reads through the trees of a database file, and fails with
// ErrCorrupt where they are not what bbolt expects. It returns how many bytes of
// the file are in use.
//
// bbolt notices most of this itself when it opens a file for writing, but in a
// goroutine of its own, where a damaged page ends the process instead of the
// call. What passes here is what bbolt can walk without surprise.
func checkStructure(file io.ReaderAt, size int64, v visitor) (used int64, err error) {
	metas := metasOf(file, pageSize)
	if len(metas) == 0 {
		return 0, errNoMeta
	}
	if len(metas) == 1 {
		// A page of this size is written as a whole or not at all, and what the
		// other one says may be older.
		return 0, fmt.Errorf("%w: one of the two meta pages is not valid", ErrCorrupt)
	}
	s, err := checkTree(file, size, metas[0], v)
	if err == nil {
		err = s.freelist()
	}
	if err != nil {
		return 0, err
	}
	return int64(len(s.used)) * pageSize, nil
}

// checkTree reads through the tree of one meta page.
func checkTree(file io.ReaderAt, size int64, m meta, v visitor) (*structure, error) {
	if m.pages > uint64(size/m.pageSize) {
		return nil, fmt.Errorf("%w: the file has %d bytes, and should have %d pages of %d", ErrCorrupt, size, m.pages, m.pageSize)
	}
	s := &structure{file: file, meta: m, used: map[uint64]bool{0: true, 1: true}, visitor: v}
	return s, s.tree(m.root, nil, nil, nil)
}

// salvageStructure lets v see what can be read, which may be anything.
func salvageStructure(file io.ReaderAt, v visitor) error {
	metas := metasOf(file, pageSize)
	if len(metas) == 0 {
		return nil
	}
	m := metas[0]
	m.pages = min(m.pages, maxSize/pageSize)
	s := &structure{file: file, meta: m, used: map[uint64]bool{0: true, 1: true}, visitor: v, salvage: true}
	return s.tolerate(s.tree(m.root, nil, nil, nil))
}

// meta is what a meta page says.
type meta struct {
	at       int64 // where it is, as page
	pageSize int64

	root, freelist, pages, transaction uint64
}

var errNoMeta = fmt.Errorf("%w: there is no valid meta page", ErrCorrupt)

// metasOf are the valid ones of the two meta pages, the newer first.
func metasOf(file io.ReaderAt, pageSize int64) []meta {
	var valid []meta
	for _, at := range []int64{0, pageSize} {
		data, err := bytesAt(file, at+headerSize, metaSize)
		if err != nil {
			continue // the other one may be there
		}
		if m, ok := parseMeta(data); ok && m.pageSize == pageSize {
			m.at = at
			valid = append(valid, m)
		}
	}
	if len(valid) == 2 && valid[1].transaction > valid[0].transaction {
		valid[0], valid[1] = valid[1], valid[0]
	}
	return valid
}

func parseMeta(data []byte) (meta, bool) {
	order := binary.NativeEndian
	sum := fnv.New64a()
	_, _ = sum.Write(data[:metaSize-8])
	valid := order.Uint32(data) == metaMagic && order.Uint32(data[4:]) == metaVersion &&
		order.Uint64(data[metaSize-8:]) == sum.Sum64()
	return meta{
		pageSize:    int64(order.Uint32(data[8:])),
		root:        order.Uint64(data[16:]),
		freelist:    order.Uint64(data[32:]),
		pages:       order.Uint64(data[40:]),
		transaction: order.Uint64(data[48:]),
	}, valid
}

// structure is the state of one reading.
type structure struct {
	visitor
	meta

	file io.ReaderAt
	used map[uint64]bool

	salvage bool // what is damaged is passed over
}

// tolerate passes over damage when as much as possible is to be read.
func (s *structure) tolerate(err error) error {
	if s.salvage && isDamage(err) {
		return nil
	}
	return err
}

// page is a page with those that overflow from it, or one within a value.
type page struct {
	*io.SectionReader

	flags, count uint16
}

// take reads the header of a page, which nothing else may use.
func (s *structure) take(id uint64) (page, error) {
	if id >= s.pages {
		return page{}, fmt.Errorf("%w: page %d is used, but there are only %d", ErrCorrupt, id, s.pages)
	}
	header, err := bytesAt(s.file, int64(id)*s.pageSize, headerSize)
	if err != nil {
		return page{}, fmt.Errorf("page %d: %w", id, err)
	}
	order := binary.NativeEndian
	length := 1 + uint64(order.Uint32(header[12:]))
	if order.Uint64(header) != id || length > s.pages-id {
		return page{}, fmt.Errorf("%w: page %d is missing", ErrCorrupt, id)
	}
	for i := id; i < id+length; i++ {
		if s.used[i] {
			return page{}, fmt.Errorf("%w: page %d is used twice", ErrCorrupt, i)
		}
		s.used[i] = true
	}
	return page{
		SectionReader: io.NewSectionReader(s.file, int64(id)*s.pageSize, int64(length)*s.pageSize),
		flags:         order.Uint16(header[8:]),
		count:         order.Uint16(header[10:]),
	}, nil
}

// freelist checks that the list, if there is one, is within its page and names
// only pages that are free: once the tree was read. The agent's own database has
// none, but those of others do, and tools for bbolt write one.
func (s *structure) freelist() error {
	if s.meta.freelist == noFreelist {
		return nil
	}
	id := s.meta.freelist
	p, err := s.take(id)
	if err != nil {
		return err
	}
	at, count, room := int64(headerSize), uint64(p.count), uint64(p.Size()-headerSize)/8
	if p.count == math.MaxUint16 { // the first entry is the count
		data, err := bytesAt(p, headerSize, 8)
		if err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
		at, count, room = at+8, binary.NativeEndian.Uint64(data), room-1
	}
	if p.flags != freelistPage || count > room {
		return fmt.Errorf("%w: page %d is not a free list", ErrCorrupt, id)
	}
	data, err := bytesAt(p, at, int(count)*8)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	free := make(map[uint64]bool, count)
	for ; len(data) > 0; data = data[8:] {
		page := binary.NativeEndian.Uint64(data)
		if page >= s.pages || s.used[page] || free[page] {
			return fmt.Errorf("%w: page %d lists page %d as free", ErrCorrupt, id, page)
		}
		free[page] = true
	}
	return nil
}

// tree reads the page and all below it. Their keys are not less than from, and
// less than to where there is one.
func (s *structure) tree(id uint64, in []string, from, to []byte) error {
	p, err := s.take(id)
	if err != nil {
		return err
	}
	switch p.flags {
	case branchPage:
		err = s.branch(p, in, from, to)
	case leafPage:
		err = s.leaf(p, in, from, to)
	default:
		err = fmt.Errorf("%w: it has the flags %x", ErrCorrupt, p.flags)
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

func (s *structure) branch(p page, in []string, from, to []byte) error {
	elements, err := s.elements(p, from, to)
	if err != nil {
		return err
	}
	if len(elements) == 0 {
		return fmt.Errorf("%w: the branch is empty", ErrCorrupt)
	}
	for i, e := range elements {
		until := to
		if i+1 < len(elements) {
			until = elements[i+1].key
		}
		if err := s.tolerate(s.tree(e.child, in, e.key, until)); err != nil {
			return err
		}
	}
	return nil
}

func (s *structure) leaf(p page, in []string, from, to []byte) error {
	elements, err := s.elements(p, from, to)
	if err != nil {
		return err
	}
	for _, e := range elements {
		switch {
		case e.isBucket:
			err = s.bucketIn(e, in)
		case s.record != nil:
			err = s.record(in, e.key, e.read)
		}
		if err := s.tolerate(err); err != nil {
			return err
		}
	}
	return nil
}

func (s *structure) bucketIn(e element, in []string) error {
	if len(in) >= maxDepth {
		return fmt.Errorf("%w: buckets within buckets", ErrCorrupt)
	}
	head, err := bytesAt(e.value, 0, bucketSize)
	if err != nil {
		return fmt.Errorf("bucket: %w", err)
	}
	order := binary.NativeEndian
	if s.bucket != nil {
		if err := s.bucket(in, string(e.key), order.Uint64(head[8:])); err != nil {
			return err
		}
	}
	in = append(in[:len(in):len(in)], string(e.key))
	if root := order.Uint64(head); root != 0 {
		return s.tree(root, in, nil, nil)
	}
	header, err := bytesAt(e.value, bucketSize, headerSize)
	if err != nil {
		return fmt.Errorf("bucket: %w", err)
	}
	if id := order.Uint64(header); id != 0 {
		return fmt.Errorf("%w: the page within a bucket has number %d", ErrCorrupt, id)
	}
	inline := page{
		SectionReader: io.NewSectionReader(e.value, bucketSize, e.value.Size()-bucketSize),
		flags:         order.Uint16(header[8:]),
		count:         order.Uint16(header[10:]),
	}
	if inline.flags != leafPage {
		return fmt.Errorf("%w: a bucket has no page", ErrCorrupt)
	}
	return s.leaf(inline, in, nil, nil)
}

// element is one entry of a page.
type element struct {
	key      []byte
	child    uint64            // of a branch
	value    *io.SectionReader // of a leaf
	isBucket bool
}

// read gives the value, if it may be one of this package.
func (e element) read() ([]byte, error) {
	if e.value.Size() > maxRecord+sumSize {
		return nil, fmt.Errorf("%w: a value has %d bytes", ErrCorrupt, e.value.Size())
	}
	return bytesAt(e.value, 0, int(e.value.Size()))
}

// elements reads the entries of a page, whose keys have to be in order.
func (s *structure) elements(p page, from, to []byte) ([]element, error) {
	table, err := bytesAt(p, headerSize, int(p.count)*elementSize)
	if err != nil {
		return nil, err
	}
	elements := make([]element, 0, p.count)
	for i := range int(p.count) {
		e, err := p.element(table, i)
		if err == nil && !s.salvage &&
			(bytes.Compare(e.key, from) < 0 || i > 0 && bytes.Equal(e.key, from) || to != nil && bytes.Compare(e.key, to) >= 0) {
			err = fmt.Errorf("%w: the key %.40q is out of order", ErrCorrupt, e.key)
		}
		if err := s.tolerate(err); err != nil {
			return nil, err
		}
		if err == nil {
			elements, from = append(elements, e), e.key
		}
	}
	return elements, nil
}

func (p page) element(table []byte, i int) (e element, err error) {
	order := binary.NativeEndian
	entry := table[i*elementSize:]
	var position, keySize, valueSize, flags uint32
	if p.flags == branchPage {
		position, keySize, e.child = order.Uint32(entry), order.Uint32(entry[4:]), order.Uint64(entry[8:])
	} else {
		flags, position = order.Uint32(entry), order.Uint32(entry[4:])
		keySize, valueSize = order.Uint32(entry[8:]), order.Uint32(entry[12:])
	}
	at := headerSize + int64(i)*elementSize + int64(position)
	end := at + int64(keySize) + int64(valueSize)
	if keySize == 0 || keySize > bolt.MaxKeySize || end > p.Size() {
		return element{}, fmt.Errorf("%w: an element has a key of %d bytes and a value of %d", ErrCorrupt, keySize, valueSize)
	}
	if e.key, err = bytesAt(p, at, int(keySize)); err != nil {
		return element{}, err
	}
	if p.flags != branchPage {
		e.value, e.isBucket = io.NewSectionReader(p, at+int64(keySize), int64(valueSize)), flags&bucketFlag != 0
	}
	return e, nil
}

func bytesAt(r io.ReaderAt, at int64, length int) ([]byte, error) {
	data := make([]byte, length)
	if n, err := r.ReadAt(data, at); n < length {
		return nil, fmt.Errorf("%w: cannot read %d bytes: %w", ErrCorrupt, length, err)
	}
	return data, nil
}
