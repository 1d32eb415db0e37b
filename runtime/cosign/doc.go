// Package cosign verifies signatures of images, as `cosign sign --key` makes them.
//
// A signature is of the digest of one manifest or index, whatever its name and place. It has the
// form of cosign 1 and 2, a payload of simple signing [SIGNATURE_SPEC], or of cosign 3, a
// Sigstore bundle with an in-toto statement in a DSSE envelope [BUNDLE_SPEC]. Only signatures by
// the caller's public keys count: certificates, timestamps and transparency logs are ignored, as
// a device may have neither a reliable clock nor a network.
//
// Except the keys, all input comes from outside and is bounded in size by the caller; nothing is
// kept between calls.
//
// [SIGNATURE_SPEC]: https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
// [BUNDLE_SPEC]: https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md
package cosign
