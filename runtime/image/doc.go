// Package image brings images and packages from registries onto the device.
//
// It owns the way to a registry (mirrors, authorities, credentials, plain HTTP), the download into containerd's content
// store, the unpacking into a snapshotter and the image records of this program. A record is named repository@digest,
// never by a tag, and is written last: an image that has a record is complete and unpacked. Nothing here decides which
// image is wanted.
//
// # Interruptions
//
// A download that breaks off, by an error or a power cut, stays where it is: its parts are held by a lease that is
// named after the image, the bytes of an unfinished part are continued with a range request, and only success or Prune
// ends the lease. Calling Pull again is all there is to do.
//
// # Trust
//
// What is asked for by digest is verified against it, whoever serves it; a tag is believed to the mirrors and the
// registry that the configuration names. HTTPS is spoken everywhere, except to hosts that are configured for plain
// HTTP: neither a redirect nor a token service can lead to plain HTTP elsewhere. Credentials are sent to the host they
// were given for and to the token service it names. Manifests, configurations, packages and answers are bounded.
//
// # Errors
//
// Every error about an image or a package is a *Error whose Kind tells what may be done about it.
//
// The context of each call carries containerd's namespace.
package image
