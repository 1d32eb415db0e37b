// Package wfmsim is a Workload Fleet Manager for trials, demonstrations and
// tests. It speaks the management interface of Margo 1.0.0-rc.3.
//
// It speaks for the standard and for nobody's client: what the standard forbids
// is answered by the problem that the standard provides for it, what it leaves
// open is done in the plainest way. Where a test needs a WFM that misbehaves it
// has to say so, by an injected fault (Faults) or by bytes of its own (SetRaw).
//
// # What it owns
//
// The desired state of each client (one manifest and one sequence of versions,
// every document ever published), the capabilities and the status reports that
// clients sent, and the policy of which clients are accepted.
//
// # Invariants
//
//   - A manifest version is given to one desired state and never again; the
//     versions of a client increase by one, from 1 with nothing deployed. Only
//     SetVersion and SetRaw can break this, which is what they are for.
//   - Equal desired states have equal bytes: documents are served as they were
//     published, manifest and bundle are written in one deterministic form.
//   - A client is known by its X.509-SVID alone and reaches nothing of another.
//
// # Failure model
//
// With Options.File the state outlives the process: it is written before a
// change is acknowledged, as a whole, and replaced atomically. Without it the
// state outlives Close and Start. Requests are bounded in size and recorded.
package wfmsim
