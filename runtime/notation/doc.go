// Package notation verifies signatures of the Notary Project, as made by `notation sign`, by the
// trust policy and trust store that `notation verify` reads:
//
//	DIR/trustpolicy.json            or trustpolicy.oci.json, which counts more
//	DIR/truststore/x509/ca/NAME/    certificates, PEM or DER
//	DIR/crl/                        revocation lists of their authorities, PEM or DER
//
// The first two are Notation's own. Revocation lists are files, since a device may have no network.
//
// A signature is a JWS or COSE envelope [SPECS] of the digest of one manifest. It counts if a
// trust policy for the repository enforces authenticity, the envelope is intact, its certificate
// leads to the trust store and has a trusted identity, and neither has expired or been revoked
// where the policy enforces that. A signature that needs a signing
// authority or plugin does not count. Timestamps are not supported: it expires with its certificate.
//
// Signatures come from outside. The caller bounds their size, this package the number and size
// of their certificates. Nothing is kept between calls.
//
// [SPECS]: https://github.com/notaryproject/specifications/tree/main/specs
package notation
