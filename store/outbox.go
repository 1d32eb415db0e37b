package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// maxReports is how many reports of one deployment wait at most. Only final
// reports, which are never dropped, can make them more.
const maxReports = 64

// NextReports returns up to limit reports that wait, the oldest first. Those
// that cannot be read are named by the error, which comes with the others.
func (s *Store) NextReports(limit int) ([]Report, error) {
	var (
		reports []Report
		rotten  []error
	)
	err := s.db.View(func(tx *bolt.Tx) error {
		waiting := tx.Bucket([]byte(bucketOutbox)).Cursor()
		for key, value := waiting.First(); key != nil && len(reports) < limit; key, value = waiting.Next() {
			r, err := decodeReport(key, value)
			if err != nil {
				rotten = append(rotten, err)
				continue
			}
			reports = append(reports, r)
		}
		return nil
	})
	return reports, errors.Join(append(rotten, err)...)
}

// AckReports deletes the reports with these sequences, in one transaction.
// Sequences that are not there are none of its business.
func (s *Store) AckReports(sequences ...uint64) error {
	s.writing.Lock()
	defer s.writing.Unlock()

	var present [][]byte
	err := s.db.View(func(tx *bolt.Tx) error {
		outbox := tx.Bucket([]byte(bucketOutbox))
		for _, n := range sequences {
			if key := reportKey(n); outbox.Get(key) != nil {
				present = append(present, key)
			}
		}
		return nil
	})
	if err == nil && len(present) > 0 {
		err = s.update("acknowledge reports", func(tx *bolt.Tx) error {
			return deleteReports(tx, present)
		})
	}
	if err != nil {
		return fmt.Errorf("cannot acknowledge reports: %w", err)
	}
	return nil
}

// appendReports puts reports at the end of the outbox and keeps it bounded.
func appendReports(tx *bolt.Tx, reports []Report) error {
	if len(reports) == 0 {
		return nil
	}
	outbox := tx.Bucket([]byte(bucketOutbox))
	for _, r := range reports {
		value, err := encode(r)
		if err != nil {
			return fmt.Errorf("report about deployment %q: %w", r.Deployment, err)
		}
		n, err := outbox.NextSequence()
		if err != nil {
			return err
		}
		if err := outbox.Put(reportKey(n), value); err != nil {
			return err
		}
	}
	return deleteReports(tx, surplus(outbox))
}

// surplus returns the keys of the reports that have to go: the oldest of each
// deployment that has too many, but neither a final one nor the newest. Reports
// that cannot be read go as well, because nothing can ever deliver them.
func surplus(outbox *bolt.Bucket) (keys [][]byte) {
	var (
		reports []Report
		count   = make(map[string]int)
		newest  = make(map[string]uint64)
		waiting = outbox.Cursor()
	)
	for key, value := waiting.First(); key != nil; key, value = waiting.Next() {
		r, err := decodeReport(key, value)
		if err != nil {
			keys = append(keys, bytes.Clone(key))
			continue
		}
		r.Body = nil
		reports = append(reports, r)
		count[r.Deployment]++
		newest[r.Deployment] = r.Sequence
	}
	for _, r := range reports {
		if count[r.Deployment] > maxReports && !r.Final && r.Sequence != newest[r.Deployment] {
			keys = append(keys, reportKey(r.Sequence))
			count[r.Deployment]--
		}
	}
	return keys
}

func deleteReports(tx *bolt.Tx, keys [][]byte) error {
	outbox := tx.Bucket([]byte(bucketOutbox))
	for _, key := range keys {
		if err := outbox.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

func reportKey(sequence uint64) []byte {
	return binary.BigEndian.AppendUint64(nil, sequence)
}

func decodeReport(key, value []byte) (Report, error) {
	if len(key) != 8 {
		return Report{}, fmt.Errorf("cannot read report %x: %w: this is not a sequence", key, ErrCorrupt)
	}
	sequence := binary.BigEndian.Uint64(key)
	r, err := decode[Report](value)
	if err != nil {
		return Report{}, fmt.Errorf("cannot read report %d: %w", sequence, err)
	}
	r.Sequence = sequence
	return r, nil
}
