package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"
)

const (
	// maxWaiting bounds the waiting reports of one deployment.
	maxWaiting = 16
	// maxOutbox and maxOutboxBytes bound all waiting reports and their bodies.
	maxOutbox      = 4096
	maxOutboxBytes = 4 << 20
	// keptFailures is how many failures of one version are still delivered after being unheard.
	keptFailures = 2
)

// The key of a report, followed by the deployment's id. It holds everything that decides which
// reports are kept, so that no body is read for it.
const (
	sequenceSize  = 8
	reportKeySize = sequenceSize + 1 + 8 // weight, version
)

// Reports returns up to limit waiting reports after a sequence, oldest first and without bodies.
// The error names unreadable ones and comes with the others.
func (s *Store) Reports(after uint64, limit int) ([]Report, error) {
	var (
		reports []Report
		rotten  []error
	)
	err := s.view(func(tx *bolt.Tx) error {
		waiting := tx.Bucket([]byte(bucketOutbox)).Cursor()
		for key, _ := waiting.Seek(sequenceKey(after + 1)); key != nil && len(reports) < limit; key, _ = waiting.Next() {
			r, err := parseReportKey(key)
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

// ReportBody returns the body of a waiting report, or ErrNotFound.
func (s *Store) ReportBody(sequence uint64) (body []byte, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		key, value := findReport(tx.Bucket([]byte(bucketOutbox)), sequence)
		if key == nil {
			return fmt.Errorf("report %d: %w", sequence, ErrNotFound)
		}
		if _, err := parseReportKey(key); err != nil {
			return err
		}
		data, err := s.unseal(bucketOutbox, key, value)
		body = bytes.Clone(data)
		return err
	})
	return body, err
}

// CountReports returns the number of waiting reports.
func (s *Store) CountReports() (n int, err error) {
	waiting, err := s.WaitingReports()
	for _, some := range waiting {
		n += some
	}
	return n, err
}

// WaitingReports returns the number of waiting reports by deployment.
func (s *Store) WaitingReports() (map[string]int, error) {
	waiting := map[string]int{}
	err := s.view(func(tx *bolt.Tx) error {
		c := tx.Bucket([]byte(bucketOutbox)).Cursor()
		for key, _ := c.First(); key != nil; key, _ = c.Next() {
			r, _ := parseReportKey(key) // an unreadable key has no deployment
			waiting[r.Deployment]++
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot count reports: %w", err)
	}
	return waiting, nil
}

// DroppedReports returns how many reports were dropped since Open for lack of room.
func (s *Store) DroppedReports() int64 {
	return s.dropped.Load()
}

// AckReports deletes these reports in one transaction, and ignores unknown sequences.
func (s *Store) AckReports(sequences ...uint64) error {
	s.writing.Lock()
	defer s.writing.Unlock()

	var present [][]byte
	err := s.view(func(tx *bolt.Tx) error {
		outbox := tx.Bucket([]byte(bucketOutbox))
		for _, n := range sequences {
			if key, _ := findReport(outbox, n); key != nil {
				present = append(present, bytes.Clone(key))
			}
		}
		return nil
	})
	if err == nil && len(present) > 0 {
		err = s.update("acknowledge reports", func(w *writing) error { return removeReports(w, present) })
	}
	if err != nil {
		return fmt.Errorf("cannot acknowledge reports: %w", err)
	}
	return nil
}

// appendReports adds reports at the end of the outbox and keeps it bounded. If unheard, they also
// replace what they supersede. It returns how many were dropped for lack of room.
func appendReports(w *writing, reports []Report, unheard bool) (dropped int, err error) {
	if len(reports) == 0 {
		return 0, nil
	}
	outbox := w.Bucket([]byte(bucketOutbox))
	about := make(map[string]bool, len(reports))
	for _, r := range reports {
		if err := errors.Join(checkSize(r.Body), r.check()); err != nil {
			return 0, fmt.Errorf("report about deployment %.80q: %w", r.Deployment, err)
		}
		n, err := outbox.NextSequence()
		if err != nil {
			return 0, err
		}
		r.Sequence = n
		key := reportKey(r)
		if err := w.put(bucketOutbox, key, sealed(bucketOutbox, key, r.Body)); err != nil {
			return 0, err
		}
		about[r.Deployment] = true
	}
	waiting, gone := sift(outbox)
	slices.SortStableFunc(waiting, func(a, b waitingReport) int { return cmp.Compare(a.class, b.class) }) // oldest first within a class
	count, size := len(waiting), 0
	for _, r := range waiting {
		size += r.size
	}
	drop := func(needless func(waitingReport) bool) (n int) {
		before := len(waiting)
		waiting = slices.DeleteFunc(waiting, func(r waitingReport) bool {
			if !needless(r) {
				return false
			}
			gone = append(gone, r.key)
			r.of.count--
			count, size = count-1, size-r.size
			return true
		})
		return before - len(waiting)
	}
	if unheard {
		drop(func(r waitingReport) bool { return r.superseded && about[r.of.id] })
	}
	dropped = drop(func(r waitingReport) bool { return r.class < needed && r.of.count > maxWaiting })
	dropped += drop(func(waitingReport) bool { return count > maxOutbox || size > maxOutboxBytes })
	return dropped, removeReports(w, gone)
}

func removeReports(w *writing, keys [][]byte) error {
	for _, key := range keys {
		if err := w.remove(bucketOutbox, key); err != nil {
			return err
		}
	}
	return nil
}

// Classes of reports, in the order in which they are dropped.
const (
	steps    = iota // steps on the way
	failures        // other failures
	ends            // other ends of deployments
	needed          // the newest of a deployment, and its newest end
)

type waitingReport struct {
	key        []byte
	size       int
	class      int
	superseded bool // a newer one suffices if neither was delivered
	of         *deploymentReports
}

// deploymentReports counts the reports of one deployment, newest first.
type deploymentReports struct {
	id       string
	count    int
	ended    bool   // one tells that it was gone
	version  uint64 // of the last failure
	failures int    // of that version
}

// sift returns the reports, oldest first, and the keys of undeliverable records. It reads no body.
func sift(outbox *bolt.Bucket) (all []waitingReport, rotten [][]byte) {
	known := make(map[string]*deploymentReports)
	waiting := outbox.Cursor()
	for key, value := waiting.Last(); key != nil; key, value = waiting.Prev() {
		key = bytes.Clone(key)
		r, err := parseReportKey(key)
		if err != nil {
			rotten = append(rotten, key)
			continue
		}
		of := known[r.Deployment]
		if of == nil {
			of = &deploymentReports{id: r.Deployment}
			known[r.Deployment] = of
		}
		w := waitingReport{key: key, size: len(value) - sumSize, of: of}
		switch r.Weight {
		case Step:
			w.superseded = of.count > 0
		case Failure:
			if of.failures == 0 || of.version != r.Version {
				of.version, of.failures = r.Version, 0
			}
			of.failures++
			w.class, w.superseded = failures, of.count > 0 && of.failures > keptFailures
		case End:
			w.class = ends
			if !of.ended {
				w.class = needed
			}
			of.ended = true
		}
		if of.count == 0 {
			w.class = needed
		}
		of.count++
		all = append(all, w)
	}
	slices.Reverse(all)
	return all, rotten
}

func findReport(outbox *bolt.Bucket, sequence uint64) (key, value []byte) {
	prefix := sequenceKey(sequence)
	if key, value = outbox.Cursor().Seek(prefix); bytes.HasPrefix(key, prefix) {
		return key, value
	}
	return nil, nil
}

func sequenceKey(sequence uint64) []byte {
	return binary.BigEndian.AppendUint64(nil, sequence)
}

func reportKey(r Report) []byte {
	key := make([]byte, 0, reportKeySize+len(r.Deployment))
	key = binary.BigEndian.AppendUint64(key, r.Sequence)
	key = append(key, byte(r.Weight))
	key = binary.BigEndian.AppendUint64(key, r.Version)
	return append(key, r.Deployment...)
}

func parseReportKey(key []byte) (Report, error) {
	if len(key) < reportKeySize || len(key) > reportKeySize+maxKey || Weight(key[sequenceSize]) > End {
		return Report{}, fmt.Errorf("cannot read report %.16x: %w: not the key of a report", key, ErrCorrupt)
	}
	return Report{
		Sequence:   binary.BigEndian.Uint64(key),
		Deployment: string(key[reportKeySize:]),
		Version:    binary.BigEndian.Uint64(key[sequenceSize+1:]),
		Weight:     Weight(key[sequenceSize]),
	}, nil
}
