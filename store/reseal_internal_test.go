package store

import (
	"bytes"
	"errors"

	bolt "go.etcd.io/bbolt"
)

// Reseal gives each record, without its sum so far, its sum, and all of them the
// seal: what a test changed behind the store's back passes for what was written.
func Reseal(tx *bolt.Tx) error {
	w := &writing{Tx: tx}
	for _, name := range []string{bucketManifest, bucketDeployments, bucketOutbox, bucketSettings} {
		var keys, values [][]byte
		err := tx.Bucket([]byte(name)).ForEach(func(key, value []byte) error {
			if value != nil {
				keys, values = append(keys, bytes.Clone(key)), append(values, bytes.Clone(value))
			}
			return nil
		})
		if err != nil {
			return err
		}
		for i, key := range keys {
			stored := sealed(name, key, values[i])
			w.sum += sumIn(stored)
			if err := tx.Bucket([]byte(name)).Put(key, stored); err != nil {
				return err
			}
		}
	}
	err := tx.Bucket([]byte(bucketArtifacts)).ForEachBucket(func(key []byte) error {
		w.sum += sumOf(bucketArtifacts, key, nil)
		return nil
	})
	if err != nil {
		return err
	}
	return w.finish(tx.Bucket([]byte(bucketMeta)))
}

// Lower makes of a database one that the version before schema 3 wrote: its records
// are the same but for what this version alone adds.
func Lower(tx *bolt.Tx) error {
	meta := tx.Bucket([]byte(bucketMeta))
	s, err := parseSeal(meta.Get([]byte(keySeal)))
	s.schema = sumSchema
	return errors.Join(err, meta.Put([]byte(keySchema), []byte("2")), meta.Put([]byte(keySeal), s.encode()))
}
