package store

import (
	"bytes"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// Setting returns a setting, and false when it is not set.
func (s *Store) Setting(name string) (value []byte, set bool, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		value = bytes.Clone(tx.Bucket([]byte(bucketSettings)).Get([]byte(name)))
		return nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("cannot read setting %q: %w", name, err)
	}
	return value, value != nil, nil
}
