package agent

import (
	"bytes"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
)

// gathered bounds, in bytes, the documents held in memory for the transaction that accepts the
// manifest; of a large change most are in the store before. Four times as much costs 4 MiB of
// memory for a large bundle and saves 3 % of its writes.
const gathered = 256 << 10

// intake takes the documents of one manifest until it is accepted. The ledger, which begins it,
// protects what it has stored from being pruned.
type intake struct {
	ledger    *ledger
	documents map[digest.Digest][]byte // not in the store yet
	size      int                      // of them
	came      map[digest.Digest]head   // of every document that came, without labels
}

// keep takes a verified document, whose bytes are the caller's.
func (in *intake) keep(d digest.Digest, document []byte) error {
	if len(in.documents) > 0 && in.size+len(document) > gathered {
		if err := in.save(); err != nil {
			return err
		}
	}
	in.documents[d] = bytes.Clone(document)
	in.size += len(document)
	came := headFrom(document)
	came.labels = nil // no record has them, and those of all documents may be many
	in.came[d] = came
	size := int64(len(document))
	in.ledger.hub.send(control.Event{Kind: control.DocumentVerified, Digest: d.String(), Progress: &control.Progress{Done: size, Total: size}})
	return nil
}

func (in *intake) save() error {
	if len(in.documents) == 0 {
		return nil
	}
	if err := in.ledger.hold(in.documents); err != nil {
		return err
	}
	clear(in.documents)
	in.size = 0
	return nil
}

// head is that of a document that came or is in the store.
func (in *intake) head(d digest.Digest) (head, error) {
	if came, ok := in.came[d]; ok {
		return came, nil
	}
	document, err := in.ledger.store.Artifact(d)
	if err != nil {
		return head{}, fmt.Errorf("cannot read document: %w", err)
	}
	return headFrom(document), nil
}
