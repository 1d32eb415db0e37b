package store

import (
	"bytes"
	"fmt"
	"strconv"

	bolt "go.etcd.io/bbolt"
)

// schema is the version of the layout drawn in store.go.
const schema = 2

// migrations lead from each schema, the first is 1, to the next one. Each is one
// transaction together with the number that says so: a power cut leaves the one
// or the other.
func migrations() []func(tx *bolt.Tx) error {
	return []func(tx *bolt.Tx) error{
		sealRecords,
	}
}

// migrate brings a database to this schema. It does not look at one of a newer.
func migrate(db *bolt.DB) error {
	for {
		again := false
		found := uint32(schema)
		err := db.View(func(tx *bolt.Tx) (err error) {
			found, err = parseSchema(tx.Bucket([]byte(bucketMeta)).Get([]byte(keySchema)))
			return err
		})
		if err == nil && found < schema {
			again = true
			err = db.Update(func(tx *bolt.Tx) error {
				if err := migrations()[found-1](tx); err != nil {
					return err
				}
				return putSchema(tx, found+1)
			})
		}
		if err != nil {
			return fmt.Errorf("cannot bring the database from schema %d to %d: %w", found, schema, full(err))
		}
		if !again {
			return nil
		}
	}
}

// sealRecords gives each record its sum, and all of them the seal. What cannot be
// read stays as it is: it is told by who reads it.
func sealRecords(tx *bolt.Tx) error {
	w := &writing{Tx: tx}
	for _, name := range sealedBuckets() {
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

// keySchema is where every version of the program finds the schema.
const keySchema = "schema"

func putSchema(tx *bolt.Tx, n uint32) error {
	return tx.Bucket([]byte(bucketMeta)).Put([]byte(keySchema), strconv.AppendUint(nil, uint64(n), 10))
}

func parseSchema(stored []byte) (uint32, error) {
	n, err := strconv.ParseUint(string(stored), 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%w: schema is %.20q", ErrCorrupt, stored)
	}
	return uint32(n), nil
}

func newerSchema(found uint32) error {
	return fmt.Errorf("%w: it has schema %d, this version reads up to %d; install the newer version again, or move the file away: "+
		"what runs goes on, and its records come again from the WFM", ErrNewerSchema, found, schema)
}
