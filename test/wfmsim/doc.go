// Package wfmsim is a Workload Fleet Manager for trials, demonstrations and
// tests. It speaks the management interface of Margo 1.0.0-rc.3, and that of
// rc.2 and rc.1 (Options.Revision).
//
// It speaks for the standard and for nobody's client: what the standard forbids
// is answered as the standard provides for it, what it leaves open is done in the
// plainest way. Request bodies are read by margo's strict parsers and held
// against the published schemas. Where a test needs a WFM that misbehaves it has
// to say so: by an injected fault (Faults) or by an option.
//
// # Revisions
//
// With RC3 clients present X.509-SVIDs in the handshake. Before it the server
// shows an ordinary certificate, clients are onboarded (or made known by Enroll),
// have their id in every path, and sign every request, which package signature
// verifies. Reports of RC1 and RC2 name no manifest version, those of RC1 no
// source of errors: nothing is asked of either.
//
// With Options.Authorization a gateway stands before the WFM, of any revision,
// that terminates TLS with an ordinary certificate and wants credentials on every
// request.
//
// # What is beside it
//
// Package mis is a Margo Identity Service, package registry an OCI registry, package
// admin and cmd/wfmsim the way in for people.
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
//     SetVersion and Restart can break this, which is what they are for.
//   - Equal desired states have equal bytes: documents are served as they were
//     published, manifest and bundle are written in one deterministic form.
//   - A client is known by its X.509-SVID, by its signature, or by what it shows
//     the gateway (RC3 only), and reaches nothing of another.
//
// # Failure model
//
// With Options.File the state outlives the process: it is written before a
// change is acknowledged, as a whole, and replaced atomically. Without it the
// state outlives Close and Start. Requests are bounded in size and recorded; so
// are clients that wait to be approved and signatures that were seen.
package wfmsim
