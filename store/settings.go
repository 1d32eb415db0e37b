package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	bolt "go.etcd.io/bbolt"
)

const (
	maxKeptSetting = 64 << 10
	maxSettings    = 16 << 20
)

// readSettings reads the copy of the settings, JSON with a sum, after the database is lost: it
// holds operators' decisions and the device's identity, which cannot be fetched again. It returns
// nil if there is no file.
func readSettings(path string) (map[string][]byte, error) {
	data, err := readFile(path, maxSettings)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var settings map[string][]byte
	if err == nil {
		data, err = unseal(bucketSettings, nil, data)
	}
	if err == nil {
		err = json.Unmarshal(data, &settings)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read settings from %q: %w", path, err)
	}
	return settings, nil
}

// writeSettings writes the file, which is created with the first setting.
func writeSettings(path string, settings map[string][]byte) error {
	if _, err := os.Lstat(path); len(settings) == 0 && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	data, err := json.Marshal(settings)
	if err == nil {
		err = keepBeside(path, sealed(bucketSettings, nil, data))
	}
	if err != nil {
		return fmt.Errorf("cannot keep settings: %w", err)
	}
	return nil
}

func (s *Store) keepSettings() error {
	settings := make(map[string][]byte)
	err := s.view(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(bucketSettings)).ForEach(func(key, stored []byte) error {
			value, err := s.unseal(bucketSettings, key, stored)
			if err == nil && len(value) <= maxKeptSetting && !slices.Contains(s.passing, string(key)) {
				settings[string(key)] = bytes.Clone(value)
			}
			return nil // the others are worth keeping
		})
	})
	if err != nil {
		return err
	}
	return writeSettings(s.files.settings(), settings)
}

// Setting returns a setting, and false if it is not set.
func (s *Store) Setting(name string) (value []byte, set bool, err error) {
	value, err = s.record(bucketSettings, name)
	if err != nil {
		return nil, false, fmt.Errorf("cannot read setting %q: %w", name, err)
	}
	return value, value != nil, nil
}
