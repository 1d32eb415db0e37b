package store

import (
	"bytes"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// Setting returns a setting, and false when it is not set.
func (s *Store) Setting(name string) (value []byte, set bool, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		stored := tx.Bucket([]byte(bucketSettings)).Get([]byte(name))
		if stored == nil {
			return nil
		}
		data, err := s.unseal(bucketSettings, []byte(name), stored)
		value, set = bytes.Clone(data), err == nil
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("cannot read setting %q: %w", name, err)
	}
	return value, set, nil
}
