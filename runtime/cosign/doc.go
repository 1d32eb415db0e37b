// Package cosign verifies signatures of images, as `cosign sign --key` makes them.
//
// A signature is of the digest of one manifest or index, whatever its name is and wherever it lies. Its two forms are
// those of cosign 1 and 2, a payload of simple signing [SIGNATURE_SPEC], and of cosign 3, a Sigstore bundle with an
// in-toto statement in a DSSE envelope [BUNDLE_SPEC]. Only signatures by a public key count that the caller has:
// certificates, timestamps and entries of transparency logs are not looked at, for a device has no clock to rely on and
// nobody to ask.
//
// Everything but the keys comes from outside and is bounded in size by the caller; nothing is kept between calls.
//
// [SIGNATURE_SPEC]: https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
// [BUNDLE_SPEC]: https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md
package cosign
