package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
)

// Apart runs a job of Work in another process and returns its output. Closing the output waits for
// the process, and fails with ErrCorrupt if damage in the database crashed it.
type Apart func(job ...string) (io.ReadCloser, error)

// here is an Apart that runs the job in this process.
func here(job ...string) (io.ReadCloser, error) {
	var out bytes.Buffer
	err := Work(&out, job...)
	return io.NopCloser(&out), err
}

// Work does a job on a bbolt database that may be damaged:
//
//	check PATH           print what is wrong with the database; nothing if it is sound
//	read PATH BUCKET     print what can be read of this top-level bucket
//
// It belongs in a process of its own (see Apart), with bounds on memory, stack and time: on damage
// bbolt panics in goroutines of its own, and follows cyclic page references forever.
func Work(out io.Writer, job ...string) error {
	if len(job) < 2 {
		return errors.New("cannot work on a database: no job")
	}
	var do func(tx *bolt.Tx) error
	switch {
	case job[0] == "check":
		do = checkAll
	case job[0] == "read" && len(job) == 3:
		do = func(tx *bolt.Tx) error { return readBucket(tx.Bucket([]byte(job[2])), json.NewEncoder(out), "") }
	default:
		return fmt.Errorf("cannot work on a database: unknown job %q", job)
	}
	err := viewOnly(job[1], do)
	if job[0] == "check" && isDamage(err) {
		_, err = fmt.Fprint(out, err)
	} else if isDamage(err) {
		err = nil // there is nothing else to read
	}
	return err
}

// viewOnly reads a database without writing to it.
func viewOnly(path string, look func(tx *bolt.Tx) error) error {
	db, _, err := openBolt(path, true)
	if err != nil {
		return err
	}
	return errors.Join(guarded(func() error { return db.View(look) }), db.Close())
}

// checkAll fails with ErrCorrupt if damage would crash bbolt.
func checkAll(tx *bolt.Tx) error {
	for err := range tx.Check() {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return touchAll(tx)
}

// touchAll reads all keys and values, including the small ones that bbolt's own check omits.
func touchAll(tx *bolt.Tx) error {
	return tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return touch(b) })
}

func touch(b *bolt.Bucket) error {
	last := byte(0)
	return b.ForEach(func(key, value []byte) error {
		if value == nil {
			return touch(b.Bucket(key))
		}
		for _, part := range [][]byte{key, value} {
			if len(part) > 0 {
				last ^= part[len(part)-1]
			}
		}
		return nil
	})
}

// found is a record as the job "read" prints it or, without a key, the start of a nested bucket.
type found struct {
	In    string `json:"in,omitempty"` // the name of the nested bucket
	Key   []byte `json:"key,omitempty"`
	Value []byte `json:"value,omitempty"`
}

func readBucket(b *bolt.Bucket, out *json.Encoder, in string) error {
	if b == nil {
		return nil
	}
	return b.ForEach(func(key, value []byte) error {
		switch {
		case value != nil && len(value) <= maxRecord+sumSize:
			return out.Encode(found{in, key, value})
		case value == nil && in == "": // buckets nest only one level
			return errors.Join(out.Encode(found{In: string(key)}), readBucket(b.Bucket(key), out, string(key)))
		}
		return nil
	})
}

// stumble is a panic of bbolt over a damaged database.
type stumble struct{ over any }

func (s *stumble) Error() string { return fmt.Sprintf("%v: %v", ErrCorrupt, s.over) }
func (s *stumble) Unwrap() error { return ErrCorrupt }

// guarded calls f, which uses a database. Damage makes bbolt panic, or fault where the file is
// shorter than its mapping or unreadable; both become a stumble.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = &stumble{p}
		}
	}()
	return f()
}
