// Package signature verifies the message signatures of Margo 1.0.0-rc.1 and
// rc.2: RFC 9421 over requests, with Content-Digest (RFC 9530) for bodies.
//
// The signatures themselves are read by a library that knows nothing of
// margolite's own signer. What is here is the standard's part of it: what has to
// be covered, and when a request has to have been signed (AUTH-06 to AUTH-11). It
// is indifferent where the standard leaves a choice: the label, the key's name,
// further components.
//
// A message is verified as a whole or not at all. Header values are bounded by
// the server that read them.
package signature
