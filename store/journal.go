package store

import (
	"time"

	"github.com/opencontainers/go-digest"
)

// Entry is one thing that happened, as the journal keeps it.
type Entry struct {
	// Sequence is given by the store: one more than that of the entry before.
	Sequence   uint64        `json:"sequence"`
	Time       time.Time     `json:"time"`
	Kind       string        `json:"kind"` // opaque here
	Deployment string        `json:"deployment,omitempty"`
	Revision   digest.Digest `json:"revision,omitempty"`
	Version    uint64        `json:"version,omitempty"` // of a manifest
	By         string        `json:"by,omitempty"`      // who did it; empty: the agent by itself
	Text       string        `json:"text,omitempty"`    // for people
	// Chain is the hash of this entry and of the Chain of the one before.
	Chain digest.Digest `json:"chain"`
}
