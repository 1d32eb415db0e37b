package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	bolt "go.etcd.io/bbolt"
)

const (
	// sumSize is how long the sum is that each sealed record ends with.
	sumSize = 8
	// keySeal is where the bucket meta has the seal.
	keySeal = "seal"
)

// sealedBuckets are those whose records end with a sum. Artifacts have their
// digests, and entries of the journal their chain.
func sealedBuckets() []string {
	return []string{bucketManifest, bucketDeployments, bucketOutbox, bucketSettings}
}

func isSealed(bucket string) bool { return slices.Contains(sealedBuckets(), bucket) }

// sumOf is the sum of a record at its place: one that is moved, or is of another
// schema, does not pass either. FNV notices each flip of neighbouring bits, and
// is fast on small processors; nobody is to be kept from forging it.
func sumOf(bucket string, key, value []byte) uint64 {
	sum := fnv.New64a()
	for _, part := range [][]byte{{schema}, []byte(bucket), key, value} {
		_, _ = sum.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		_, _ = sum.Write(part)
	}
	return sum.Sum64()
}

// sealed is a record as it is stored.
func sealed(bucket string, key, value []byte) []byte {
	return binary.BigEndian.AppendUint64(slices.Clip(value), sumOf(bucket, key, value))
}

// unseal gives the record that is stored, and ErrCorrupt where it is not the one
// that was written there.
func unseal(bucket string, key, stored []byte) ([]byte, error) {
	if at := len(stored) - sumSize; at >= 0 && sumIn(stored) == sumOf(bucket, key, stored[:at]) {
		return stored[:at:at], nil
	}
	return nil, fmt.Errorf("%w: it was altered", ErrCorrupt)
}

// sumIn is the sum that a stored record ends with; 0 where there is none.
func sumIn(stored []byte) uint64 {
	if len(stored) < sumSize {
		return 0
	}
	return binary.BigEndian.Uint64(stored[len(stored)-sumSize:])
}

// seal says of all records together that none is missing, and what else cannot
// tell for itself that it is as it was written. It begins with the schema in
// every schema.
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

// writing is a transaction that keeps the seal. It is in the page that each
// transaction writes anyway.
type writing struct {
	*bolt.Tx

	sum uint64
}

// inTransaction runs a change of records, and seals it.
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

// finish writes the seal.
func (w *writing) finish(meta *bolt.Bucket) error {
	return meta.Put([]byte(keySeal), seal{schema, w.sum, w.Bucket([]byte(bucketOutbox)).Sequence()}.encode())
}

// put seals a record and stores it.
func (w *writing) put(bucket string, key, value []byte) error {
	return w.store(bucket, key, sealed(bucket, key, value))
}

// store is put for a record that is sealed.
func (w *writing) store(bucket string, key, stored []byte) error {
	b := w.Bucket([]byte(bucket))
	w.sum += sumIn(stored) - sumIn(b.Get(key))
	return b.Put(key, stored)
}

func (w *writing) remove(bucket string, key []byte) error {
	b := w.Bucket([]byte(bucket))
	w.sum -= sumIn(b.Get(key))
	return b.Delete(key)
}

// createArtifact makes the bucket of an artifact, in place of one that is there.
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

// census counts the records of a database that is read from one end to the
// other, to compare them with the seal.
type census struct {
	schema  []byte // as the bucket meta has it
	seal    []byte
	sum     uint64
	outbox  uint64
	buckets map[string]bool
	rotten  error // the first record that is not as it was written
}

// compare fails with ErrCorrupt when a record is not as it was written, or was
// not written at all, and with ErrNewerSchema when somebody else has to tell.
func (c *census) compare() error {
	found, err := parseSchema(c.schema)
	if err != nil {
		return err
	}
	for _, name := range append(buckets(), bucketMeta) {
		if !c.buckets[name] && found <= schema {
			return fmt.Errorf("%w: there is no bucket %q", ErrCorrupt, name)
		}
	}
	if found > schema && len(c.seal) >= 4 && binary.BigEndian.Uint32(c.seal) == found { // else it was another number
		return newerSchema(found)
	}
	s, err := parseSeal(c.seal)
	switch {
	case err != nil:
		return err
	case s.schema != found:
		return fmt.Errorf("%w: schema is %d, but %d in the seal", ErrCorrupt, found, s.schema)
	case c.rotten != nil:
		return c.rotten
	case s.sum != c.sum:
		return fmt.Errorf("%w: records are missing or unexpected", ErrCorrupt)
	case s.outbox != c.outbox:
		return fmt.Errorf("%w: report %d was the newest, now it is %d", ErrCorrupt, s.outbox, c.outbox)
	}
	return nil
}

// visitor is who takes the census.
func (c *census) visitor() visitor {
	c.buckets = make(map[string]bool)
	return visitor{
		bucket: func(in []string, name string, sequence uint64) error {
			switch {
			case len(in) == 0:
				c.buckets[name] = true
				if name == bucketOutbox {
					c.outbox = sequence
				}
			case in[0] == bucketArtifacts:
				c.sum += sumOf(bucketArtifacts, []byte(name), nil)
			}
			return nil
		},
		record: func(in []string, key []byte, value func() ([]byte, error)) error {
			if len(in) != 1 || in[0] != bucketMeta && !isSealed(in[0]) {
				return nil
			}
			stored, err := value()
			if err != nil {
				return err
			}
			switch {
			case in[0] == bucketMeta && string(key) == keySchema:
				c.schema = stored
			case in[0] == bucketMeta && string(key) == keySeal:
				c.seal = stored
			case in[0] == bucketMeta:
			default:
				c.sum += sumIn(stored)
				if _, err := unseal(in[0], key, stored); err != nil && c.rotten == nil {
					c.rotten = fmt.Errorf("record %.80q of %q: %w", key, in[0], err)
				}
			}
			return nil
		},
	}
}

// isDamage says that an error is about a database that can be made anew.
func isDamage(err error) bool { return errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerSchema) }
