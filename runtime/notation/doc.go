// Package notation verifies signatures of the Notary Project, as `notation sign` makes them, by the trust policy and the
// trust store that `notation verify` reads:
//
//	DIR/trustpolicy.json            or trustpolicy.oci.json, which counts more
//	DIR/truststore/x509/ca/NAME/    certificates, PEM or DER
//	DIR/crl/                        revocation lists of their authorities, PEM or DER
//
// The first two are Notation's own. Revocation lists are files here, since a device may have no network: nobody is asked.
//
// A signature is a JWS or COSE envelope [SPECS] of the digest of one manifest. It counts if a trust policy that applies
// to the repository enforces authenticity and the envelope is intact, its certificate leads to the trust store and is of
// a trusted identity, and neither has expired or was revoked where the policy enforces that. What is not supported makes
// a signature not count: signing authorities, plugins, and timestamps, without which a signature ends with its
// certificate.
//
// Signatures come from outside. The caller bounds their size, and the number and size of their certificates is bounded
// here. Nothing is kept between calls.
//
// [SPECS]: https://github.com/notaryproject/specifications/tree/main/specs
package notation
