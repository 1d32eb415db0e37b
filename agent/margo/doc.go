// Package margo holds the documents of the wire: the state manifest, the
// ApplicationDeployment, the deployment status, the device capabilities and
// the problem detail, as revision 1.0.0-rc.3 of the Margo specification
// defines them, and the older forms that can still be met.
//
// It owns types, parsing, validation and marshalling of these documents, and
// nothing else: no connections, no storage, no decisions.
//
// Invariants:
//   - What a parser returns without an error satisfies every rule that its
//     comments cite. The ids in brackets and in [Error.Requirement] (DS-06,
//     AD-05, A-23, ...) are those of the requirement checklist and of the list
//     of ambiguities of the protocol reference.
//   - Versions are uint64 from the literal to the literal; no number that
//     counts passes through a float.
//   - Every parser is bounded in bytes, depth, nodes and entries, and returns
//     in time linear to its input.
//   - Digests are never computed here: they belong to the exact bytes that
//     were received, which these types no longer are.
//
// # Documents that do not match their digests
//
// On any digest mismatch the update ends and the former state stays (DS-18). That is
// about bytes that arrived: a bundle or a document which does not match refuses the
// change as a whole, whatever the other way to the same documents would bring, since
// a manifest that is wrong in one place is not known to be right in another. It is not
// about an artifact that the WFM does not have: its answer 404 says nothing about the
// deployments (DS-14), the registry of problem types sends the client from the bundle
// to the single documents and back, and each of them is verified by its own digest.
// So a wrong bundle.digest is refused where the WFM serves the bundle, and shows
// nowhere where it does not. The conformance toolkit wants the second case refused as
// well; a device does so with wfm.strict, which takes documents from the bundle alone.
//
// WFMs in the field serve single documents in another serialization than the one whose
// digest they publish, and right bundles. The change is refused once, and from then on
// the bundle of that WFM is fetched first.
//
// Failure model: a document that cannot be accepted is refused with [Errors],
// which names the place and the rule of each violation that was found.
// Members of a deployment that are not known here are kept beside it
// ([Deployment.Ignored], [Deployment.Foreign]).
package margo
