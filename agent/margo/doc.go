// Package margo holds the documents of the wire: the state manifest, the ApplicationDeployment,
// the deployment status, the device capabilities and the problem detail, as revision 1.0.0-rc.3
// of the Margo specification defines them, and older forms in use.
//
// It owns types, parsing, validation and marshalling of these documents: no connections, no
// storage, no decisions.
//
// Invariants:
//   - What a parser returns without an error satisfies every rule that its comments cite.
//     The ids in brackets and in [Error.Requirement] (DS-06, AD-05, A-23, ...) are those of
//     the requirement checklist and the list of ambiguities of the protocol reference.
//   - Versions are uint64 from literal to literal; no number that counts passes through a
//     float.
//   - Every parser is bounded in bytes, depth, nodes and entries, and returns in time linear
//     to its input.
//   - Digests are never computed here: they belong to the exact bytes received.
//
// # Documents that do not match their digests
//
// On any digest mismatch the update ends and the former state stays (DS-18). That concerns bytes
// that arrived: a bundle or document that does not match refuses the change as a whole, even if
// the other way to the same documents works, since a manifest that is wrong in one place is not
// known to be right in another. It does not concern an artifact that the WFM does not have: a 404
// says nothing about the deployments (DS-14), the registry of problem types sends the client from
// the bundle to the single documents and back, and each of them is verified by its own digest. So
// a wrong bundle.digest is refused if the WFM serves the bundle, and not noticed otherwise. The
// conformance toolkit wants the second case refused as well; a device with wfm.strict does so by
// taking documents from the bundle alone.
//
// Some WFMs serve right bundles, and single documents in another serialization than the one whose
// digest they publish. The change is refused once; from then on that WFM's bundle is fetched
// first.
//
// Failure model: a document that cannot be accepted is refused with [Errors], which names the
// place and rule of each violation found. Unknown members of a deployment are kept beside it
// ([Deployment.Ignored], [Deployment.Foreign]).
package margo
