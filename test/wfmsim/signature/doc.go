// Package signature verifies the message signatures of Margo 1.0.0-rc.1 and
// rc.2: RFC 9421 over requests, with Content-Digest (RFC 9530) for bodies.
//
// It is written from the two RFCs and knows nothing of margolite's own signer,
// so that each can show the other's mistakes. It is strict where the standard
// says what has to be covered (AUTH-06 to AUTH-11), and indifferent where the
// standard leaves a choice: the label, the key's name, further components.
//
// A message is verified as a whole or not at all; a Refusal says which rule it
// breaks. Header values are bounded by the server that read them.
package signature
