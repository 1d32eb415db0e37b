package store

import (
	"fmt"
	"strconv"
)

const (
	// schema is the version of the layout drawn in store.go. A database of schema 2
	// has records without a Summary, and gets this schema with the next transaction.
	schema = 3
	// sumSchema is the schema that brought the sums as they are.
	sumSchema = 2
)

// keySchema is where every version of the program finds the schema.
const keySchema = "schema"

func parseSchema(stored []byte) (uint32, error) {
	n, err := strconv.ParseUint(string(stored), 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%w: schema is %.20q", ErrCorrupt, stored)
	}
	return uint32(n), nil
}

func newerSchema(found uint32) error {
	return fmt.Errorf("%w: it has schema %d, this version reads up to %d; install the newer version again, or move the file away: "+
		"workloads keep running, and the WFM sends the records again", ErrNewerSchema, found, schema)
}
