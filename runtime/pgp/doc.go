// Package pgp verifies detached OpenPGP signatures, which packages of early revisions of the
// standard have (PKG-15).
//
// It parses input just far enough to know what it is: armor is removed, keys must be public keys
// and signatures only signatures, both bounded in size and number. The result goes to gpgv of
// GnuPG, a program of the system: ProtonMail/go-crypto would add 0.89 MB to every device and
// exceed the budget (build/README.md). gpgv runs without root rights, network, configuration or
// keyring of the device, and writes nothing: keys and signature are in memory, and the signed
// data come through a pipe.
//
// Its status lines count, not its exit code, which is 0 even for expired or revoked keys.
//
// Nothing is kept between calls.
package pgp
