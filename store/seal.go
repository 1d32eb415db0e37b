package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	bolt "go.etcd.io/bbolt"
)

const (
	// schema is the version of the layout drawn in store.go. A database of schema 2 has records
	// without a Summary, and gets this schema with the next transaction.
	schema = 3
	// sumSchema is the schema that introduced the present sums.
	sumSchema = 2
)

// keySchema is the key at which every version of the program finds the schema.
const keySchema = "schema"

func parseSchema(stored []byte) (uint32, error) {
	n, err := strconv.ParseUint(string(stored), 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%w: schema is %.20q", ErrCorrupt, stored)
	}
	return uint32(n), nil
}

const (
	sumSize = 8
	keySeal = "seal"
)

// sumOf includes the record's place, so that a moved record fails too. FNV detects each flip of
// neighbouring bits and is fast on small processors; forgery is not a concern.
func sumOf(bucket string, key, value []byte) uint64 {
	sum := fnv.New64a()
	for _, part := range [][]byte{{sumSchema}, []byte(bucket), key, value} {
		_, _ = sum.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		_, _ = sum.Write(part)
	}
	return sum.Sum64()
}

// sealed adds a record's sum. Artifacts have digests instead, and journal entries their chain.
func sealed(bucket string, key, value []byte) []byte {
	return binary.BigEndian.AppendUint64(slices.Clip(value), sumOf(bucket, key, value))
}

// unseal returns the stored record, or ErrCorrupt if it is not what was written at this place.
func unseal(bucket string, key, stored []byte) ([]byte, error) {
	if at := len(stored) - sumSize; at >= 0 && sumIn(stored) == sumOf(bucket, key, stored[:at]) {
		return stored[:at:at], nil
	}
	return nil, fmt.Errorf("%w: it was altered", ErrCorrupt)
}

// sumIn returns the sum at the end of a stored record; 0 if it is too short.
func sumIn(stored []byte) uint64 {
	if len(stored) < sumSize {
		return 0
	}
	return binary.BigEndian.Uint64(stored[len(stored)-sumSize:])
}

// seal covers all records together, to show missing ones. It begins with the schema, in every
// version.
type seal struct {
	schema uint32
	sum    uint64 // of the sums of all sealed records, and of the keys of all artifacts
	outbox uint64 // the sequence of the newest report
}

func (s seal) encode() []byte {
	data := binary.BigEndian.AppendUint32(nil, s.schema)
	data = binary.BigEndian.AppendUint64(data, s.sum)
	data = binary.BigEndian.AppendUint64(data, s.outbox)
	return sealed(bucketMeta, []byte(keySeal), data)
}

func parseSeal(stored []byte) (seal, error) {
	data, err := unseal(bucketMeta, []byte(keySeal), stored)
	if err == nil && len(data) != 20 {
		err = fmt.Errorf("%w: it has %d bytes", ErrCorrupt, len(data))
	}
	if err != nil {
		return seal{}, fmt.Errorf("seal of the records: %w", err)
	}
	return seal{binary.BigEndian.Uint32(data), binary.BigEndian.Uint64(data[4:]), binary.BigEndian.Uint64(data[12:])}, nil
}

// writing is a transaction that maintains the seal, in a page that each transaction writes anyway.
type writing struct {
	*bolt.Tx

	sum uint64
}

func inTransaction(tx *bolt.Tx, change func(w *writing) error) error {
	meta := tx.Bucket([]byte(bucketMeta))
	before, err := parseSeal(meta.Get([]byte(keySeal)))
	if err != nil {
		return err
	}
	w := &writing{tx, before.sum}
	if err := change(w); err != nil {
		return err
	}
	return w.finish(meta)
}

func (w *writing) finish(meta *bolt.Bucket) error {
	return errors.Join(
		meta.Put([]byte(keySchema), []byte(strconv.Itoa(schema))),
		meta.Put([]byte(keySeal), seal{schema, w.sum, w.Bucket([]byte(bucketOutbox)).Sequence()}.encode()),
	)
}

func (w *writing) put(bucket string, key, stored []byte) error {
	b := w.Bucket([]byte(bucket))
	w.sum += sumIn(stored) - sumIn(b.Get(key))
	return b.Put(key, stored)
}

func (w *writing) remove(bucket string, key []byte) error {
	b := w.Bucket([]byte(bucket))
	w.sum -= sumIn(b.Get(key))
	return b.Delete(key)
}

// createArtifact creates an artifact's bucket and replaces an existing one.
func (w *writing) createArtifact(key []byte) (*bolt.Bucket, error) {
	artifacts := w.Bucket([]byte(bucketArtifacts))
	if artifacts.Bucket(key) != nil {
		if err := w.removeArtifact(key); err != nil {
			return nil, err
		}
	}
	w.sum += sumOf(bucketArtifacts, key, nil)
	return artifacts.CreateBucket(key)
}

func (w *writing) removeArtifact(key []byte) error {
	w.sum -= sumOf(bucketArtifacts, key, nil)
	return w.Bucket([]byte(bucketArtifacts)).DeleteBucket(key)
}

// verifySeal reads all records. It fails with ErrCorrupt when one is missing, changed or was never
// written, and with ErrNewerSchema when only a newer version can tell.
func verifySeal(tx *bolt.Tx) error {
	meta := tx.Bucket([]byte(bucketMeta))
	if meta == nil {
		return fmt.Errorf("%w: there is no bucket %q", ErrCorrupt, bucketMeta)
	}
	found, err := parseSchema(meta.Get([]byte(keySchema)))
	if err != nil {
		return err
	}
	stored := meta.Get([]byte(keySeal))
	if found > schema && len(stored) >= 4 && binary.BigEndian.Uint32(stored) == found { // else it was another number
		return fmt.Errorf("%w: it has schema %d, this version reads up to %d; install the newer version again, or move the file away: "+
			"workloads keep running, and the WFM sends the records again", ErrNewerSchema, found, schema)
	}
	s, err := parseSeal(stored)
	if err != nil {
		return err
	}
	if s.schema != found {
		return fmt.Errorf("%w: schema is %d, but %d in the seal", ErrCorrupt, found, s.schema)
	}
	sum, outbox := uint64(0), uint64(0)
	for _, name := range buckets() {
		b := tx.Bucket([]byte(name))
		if b == nil {
			return fmt.Errorf("%w: there is no bucket %q", ErrCorrupt, name)
		}
		if name == bucketOutbox {
			outbox = b.Sequence()
		}
		if err := b.ForEach(func(key, stored []byte) error {
			if name == bucketArtifacts {
				sum += sumOf(bucketArtifacts, key, nil)
				return nil
			}
			sum += sumIn(stored)
			if _, err := unseal(name, key, stored); err != nil {
				return fmt.Errorf("record %.80q of %q: %w", key, name, err)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	switch {
	case s.sum != sum:
		return fmt.Errorf("%w: records are missing or unexpected", ErrCorrupt)
	case s.outbox != outbox:
		return fmt.Errorf("%w: report %d was the newest, now it is %d", ErrCorrupt, s.outbox, outbox)
	}
	return nil
}

// isDamage reports whether an error is about a database that can be rebuilt.
func isDamage(err error) bool { return errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerSchema) }
