package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
)

// chunkSize bounds values, and thus the runs of free pages that bbolt must find.
const chunkSize = 256 << 10

// Artifact returns the bytes whose digest is d. It fails with ErrNotFound, or with ErrCorrupt when
// the stored bytes have another digest; committing the artifact again repairs that.
func (s *Store) Artifact(d digest.Digest) (data []byte, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		b := artifactBucket(tx, d)
		if b == nil {
			return ErrNotFound
		}
		return b.ForEach(func(_, chunk []byte) error {
			data = append(data, chunk...)
			return nil
		})
	})
	if err == nil {
		err = verify(d, data)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read artifact %s: %w", d, err)
	}
	return data, nil
}

// HasArtifact reports whether bytes are stored for d, without reading them.
func (s *Store) HasArtifact(d digest.Digest) bool {
	found := false
	err := s.view(func(tx *bolt.Tx) error {
		found = artifactBucket(tx, d) != nil
		return nil
	})
	return err == nil && found
}

// PruneArtifacts deletes all artifacts except those in keep, and returns how many.
func (s *Store) PruneArtifacts(keep map[digest.Digest]bool) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()

	var unused [][]byte
	err := s.view(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(bucketArtifacts)).ForEachBucket(func(key []byte) error {
			if !keep[digest.Digest(key)] {
				unused = append(unused, bytes.Clone(key))
			}
			return nil
		})
	})
	if err == nil && len(unused) > 0 {
		err = s.update("prune artifacts", func(w *writing) error {
			for _, key := range unused {
				if err := w.removeArtifact(key); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return 0, fmt.Errorf("cannot prune artifacts: %w", err)
	}
	return len(unused), nil
}

func artifactBucket(tx *bolt.Tx, d digest.Digest) *bolt.Bucket {
	return tx.Bucket([]byte(bucketArtifacts)).Bucket([]byte(d))
}

// artifactStored reports whether exactly data is stored for d.
func artifactStored(tx *bolt.Tx, d digest.Digest, data []byte) bool {
	b := artifactBucket(tx, d)
	if b == nil {
		return false
	}
	same, rest := true, data
	err := b.ForEach(func(_, chunk []byte) error {
		var prefixed bool
		rest, prefixed = bytes.CutPrefix(rest, chunk)
		same = same && prefixed
		return nil
	})
	return err == nil && same && len(rest) == 0
}

func putArtifact(w *writing, d digest.Digest, data []byte) error {
	b, err := w.createArtifact([]byte(d))
	if err != nil {
		return err
	}
	number := uint32(0)
	for chunk := range slices.Chunk(data, chunkSize) {
		if err := b.Put(binary.BigEndian.AppendUint32(nil, number), chunk); err != nil {
			return err
		}
		number++
	}
	return nil
}

func verify(d digest.Digest, data []byte) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("artifact %q: %w", d, err)
	}
	if got := d.Algorithm().FromBytes(data); got != d {
		return fmt.Errorf("%w: artifact %s has the digest %s", ErrCorrupt, d, got)
	}
	return nil
}
