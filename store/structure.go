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
)

// checkStructure reads through the trees of a database file, and fails with
// ErrCorrupt where they are not what bbolt expects.
//
// bbolt notices most of this itself when it opens a file for writing, but in a
// goroutine of its own, where a damaged page ends the process instead of the
// call. What passes here is what bbolt can walk without surprise.
func checkStructure(file io.ReaderAt, size int64) error {
	m, err := newestMeta(file)
	if err != nil {
		return err
	}
	if m.pages > uint64(size)/pageSize {
		return fmt.Errorf("%w: the file has %d bytes, and should have %d pages of %d", ErrCorrupt, size, m.pages, pageSize)
	}
	s := &structure{file: file, pages: m.pages, used: map[uint64]bool{0: true, 1: true}}
	if m.freelist != noFreelist {
		if err := s.freelist(m.freelist); err != nil {
			return err
		}
	}
	return s.tree(m.root, nil, nil)
}

// meta is what a meta page says.
type meta struct {
	root, freelist, pages, transaction uint64
}

// newestMeta takes the newer one of the meta pages that are whole: a power cut
// leaves the one before.
func newestMeta(file io.ReaderAt) (newest meta, err error) {
	valid := false
	for _, at := range []int64{0, pageSize} {
		data, err := bytesAt(file, at+headerSize, metaSize)
		if err != nil {
			return meta{}, fmt.Errorf("meta page: %w", err)
		}
		if m, ok := parseMeta(data); ok && (!valid || m.transaction > newest.transaction) {
			newest, valid = m, true
		}
	}
	if !valid {
		return meta{}, fmt.Errorf("%w: there is no valid meta page", ErrCorrupt)
	}
	return newest, nil
}

func parseMeta(data []byte) (meta, bool) {
	order := binary.NativeEndian
	sum := fnv.New64a()
	_, _ = sum.Write(data[:metaSize-8])
	valid := order.Uint32(data) == metaMagic && order.Uint32(data[4:]) == metaVersion &&
		order.Uint32(data[8:]) == pageSize && order.Uint64(data[metaSize-8:]) == sum.Sum64()
	return meta{
		root:        order.Uint64(data[16:]),
		freelist:    order.Uint64(data[32:]),
		pages:       order.Uint64(data[40:]),
		transaction: order.Uint64(data[48:]),
	}, valid
}

// structure is the state of one check.
type structure struct {
	file  io.ReaderAt
	pages uint64
	used  map[uint64]bool
}

// page is a page with those that overflow from it, or one within a value.
type page struct {
	*io.SectionReader

	flags, count uint16
}

// take reads the header of a page, which nothing else may use.
func (s *structure) take(id uint64) (page, error) {
	if id >= s.pages {
		return page{}, fmt.Errorf("%w: page %d is used, there are %d", ErrCorrupt, id, s.pages)
	}
	header, err := bytesAt(s.file, int64(id)*pageSize, headerSize)
	if err != nil {
		return page{}, fmt.Errorf("page %d: %w", id, err)
	}
	order := binary.NativeEndian
	length := 1 + uint64(order.Uint32(header[12:]))
	if order.Uint64(header) != id || length > s.pages-id {
		return page{}, fmt.Errorf("%w: page %d is not there", ErrCorrupt, id)
	}
	for i := id; i < id+length; i++ {
		if s.used[i] {
			return page{}, fmt.Errorf("%w: page %d is used twice", ErrCorrupt, i)
		}
		s.used[i] = true
	}
	return page{
		SectionReader: io.NewSectionReader(s.file, int64(id)*pageSize, int64(length)*pageSize),
		flags:         order.Uint16(header[8:]),
		count:         order.Uint16(header[10:]),
	}, nil
}

// freelist checks that the list is within its page. This program writes none,
// but tools for bbolt do.
func (s *structure) freelist(id uint64) error {
	p, err := s.take(id)
	if err != nil {
		return err
	}
	count, room := uint64(p.count), uint64(p.Size()-headerSize)/8
	if p.count == math.MaxUint16 { // the first entry is the count
		data, err := bytesAt(p, headerSize, 8)
		if err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
		count, room = binary.NativeEndian.Uint64(data), room-1
	}
	if p.flags != freelistPage || count > room {
		return fmt.Errorf("%w: page %d is no free list", ErrCorrupt, id)
	}
	return nil
}

// tree checks the page and all below it. Their keys are not less than from, and
// less than to where there is one.
func (s *structure) tree(id uint64, from, to []byte) error {
	p, err := s.take(id)
	if err != nil {
		return err
	}
	switch p.flags {
	case branchPage:
		err = s.branch(p, from, to)
	case leafPage:
		err = s.leaf(p, from, to)
	default:
		err = fmt.Errorf("%w: it has the flags %x", ErrCorrupt, p.flags)
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

func (s *structure) branch(p page, from, to []byte) error {
	elements, err := p.elements(from, to)
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
		if err := s.tree(e.child, e.key, until); err != nil {
			return err
		}
	}
	return nil
}

func (s *structure) leaf(p page, from, to []byte) error {
	elements, err := p.elements(from, to)
	if err != nil {
		return err
	}
	for _, e := range elements {
		if e.bucket == nil {
			continue
		}
		if err := s.bucket(e.bucket); err != nil {
			return err
		}
	}
	return nil
}

func (s *structure) bucket(value *io.SectionReader) error {
	bucket, err := bytesAt(value, 0, bucketSize)
	if err != nil {
		return fmt.Errorf("bucket: %w", err)
	}
	order := binary.NativeEndian
	if root := order.Uint64(bucket); root != 0 {
		return s.tree(root, nil, nil)
	}
	header, err := bytesAt(value, bucketSize, headerSize)
	if err != nil {
		return fmt.Errorf("bucket: %w", err)
	}
	if id := order.Uint64(header); id != 0 {
		return fmt.Errorf("%w: the page within a bucket says that it is page %d", ErrCorrupt, id)
	}
	inline := page{
		SectionReader: io.NewSectionReader(value, bucketSize, value.Size()-bucketSize),
		flags:         order.Uint16(header[8:]),
		count:         order.Uint16(header[10:]),
	}
	if inline.flags != leafPage {
		return fmt.Errorf("%w: a bucket has no page", ErrCorrupt)
	}
	return s.leaf(inline, nil, nil)
}

// element is one entry of a page.
type element struct {
	key    []byte
	child  uint64            // of a branch
	bucket *io.SectionReader // of a leaf; nil: a plain value
}

// elements reads the entries of a page, whose keys have to be in order.
func (p page) elements(from, to []byte) ([]element, error) {
	table, err := bytesAt(p, headerSize, int(p.count)*elementSize)
	if err != nil {
		return nil, err
	}
	elements := make([]element, p.count)
	for i := range elements {
		e, err := p.element(table, i)
		if err != nil {
			return nil, err
		}
		if bytes.Compare(e.key, from) < 0 || i > 0 && bytes.Equal(e.key, from) || to != nil && bytes.Compare(e.key, to) >= 0 {
			return nil, fmt.Errorf("%w: the key %.40q is out of order", ErrCorrupt, e.key)
		}
		elements[i], from = e, e.key
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
	if keySize > bolt.MaxKeySize || end > p.Size() {
		return element{}, fmt.Errorf("%w: an element has a key of %d bytes and a value of %d", ErrCorrupt, keySize, valueSize)
	}
	if e.key, err = bytesAt(p, at, int(keySize)); err != nil {
		return element{}, err
	}
	if flags&bucketFlag != 0 {
		e.bucket = io.NewSectionReader(p, at+int64(keySize), int64(valueSize))
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
