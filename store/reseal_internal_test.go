package store

import (
	"bytes"
	"errors"

	bolt "go.etcd.io/bbolt"
)

// Reseal gives each record that a test changed behind the store's back its sum, and all
// of them the seal: they pass for what was written.
func Reseal(tx *bolt.Tx) error {
	w := &writing{Tx: tx}
	for _, name := range []string{bucketManifest, bucketDeployments, bucketOutbox, bucketSettings} {
		b, changed := tx.Bucket([]byte(name)), map[string][]byte{}
		err := b.ForEach(func(key, stored []byte) error {
			if _, err := unseal(name, key, stored); err != nil {
				stored = sealed(name, key, bytes.Clone(stored))
				changed[string(key)] = stored
			}
			w.sum += sumIn(stored)
			return nil
		})
		for key, stored := range changed {
			err = errors.Join(err, b.Put([]byte(key), stored))
		}
		if err != nil {
			return err
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
