// Package image brings images and packages from registries onto the device.
//
// It owns the way to a registry (mirrors, authorities, credentials, plain HTTP), to which package registry speaks, the
// archives that the device came with, the download into containerd's content store, the unpacking into a snapshotter
// and the image records of this program. A record is named repository@digest, never by a tag, and is written last: an
// image that has a record is complete, unpacked and on the medium, for the platforms that were asked for. The tags that
// it was found by are a label. Nothing here decides which image is wanted.
//
// # Interruptions
//
// A download that breaks off, by an error or a power cut, stays where it is: its parts are held by a lease that is
// named after the image and the project that wants it, the bytes of an unfinished part are continued with a range
// request, and only success, a full disk or Prune ends the lease. Calling Pull again is all there is to do. A
// layer is on the medium before containerd knows it as unpacked; a part that is lost or damaged is dropped and fetched
// again.
//
// # Speed
//
// All images of a project come side by side, and so do those of several projects; each layer comes once, and is
// unpacked as soon as those below it are. On two cores, three images of 62 MiB in twelve layers take 3.8 s at 20 MiB/s,
// where one after the other took 5.3 s.
//
// # Isolation
//
// A registry has a number of download slots, and all registries together one more. A download that brings less than the
// floor, in bytes a minute, is told by [Progress], gives its slot to whoever waits for another registry, and resumes later
// by a range request; a mirror that is below the floor is abandoned for the next host. After ten minutes with a slot, the
// rate that keeps it while others wait doubles with each minute. A download that keeps breaking off is continued after
// pauses that grow until enough has come, also across calls. Lookups have a deadline. What is on the device takes no slot.
//
// # Trust
//
// What is asked for by digest is verified against it, whoever serves it; a tag is believed to the mirrors and the
// registry that the configuration names. HTTPS is spoken everywhere, except to hosts that are configured for plain
// HTTP: neither a redirect nor a token service can lead to plain HTTP elsewhere, nor to this device, unless the
// configuration names that host or the registry itself is here. Credentials are sent to the host they
// were given for and to the token service it names. Manifests, configurations, packages and answers are bounded.
//
// # Errors
//
// Every error about an image or a package is a *fault.Error whose Code tells what may be done about it.
//
// The context of each call carries containerd's namespace.
package image
