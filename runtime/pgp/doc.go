// Package pgp verifies detached OpenPGP signatures, as packages of early
// revisions of the standard have them (PKG-15).
//
// It reads what comes from outside just far enough to know what it is: armor is
// taken off, keys have to be public keys and signatures nothing but signatures,
// both bounded in size and number. Only that reaches gpgv, the verifier of
// GnuPG, which is a program of the system: ProtonMail/go-crypto would add 0.89 MB
// to every device and exceed the budget (build/README.md). gpgv
// has no network, configuration or keyring of the device, runs without the
// rights of root, and writes nothing: keys and signature lie in memory, and the
// signed data come through a pipe.
//
// What counts is what gpgv says of each signature, not how it exits: it is
// content with keys that have expired or were revoked, and this package is not.
//
// Nothing is kept between calls.
package pgp
