// Package image brings images and packages from registries onto the device.
//
// It owns the way to a registry (mirrors, authorities, credentials, plain HTTP), which package registry
// speaks to, preloaded archives, the download into containerd's content store, the unpacking into a
// snapshotter and our image records. A record is named repository@digest, never by a tag, and written
// last: an image with a record is complete, unpacked and durable for the requested platforms. Its tags
// are in a label. Callers decide which image is wanted.
//
// # Interruptions
//
// An interrupted download is kept: its parts are held by a lease named after the image and the
// project, and an unfinished part continues with a range request. Only success, a full disk or Prune
// ends the lease. To continue, call Pull again. A layer is durable before containerd knows it as
// unpacked; a lost or damaged part is dropped and fetched again.
//
// # Speed
//
// All images of a project, and of several projects, are pulled in parallel; each layer comes once and
// is unpacked as soon as those below it are. On two cores, three images of 62 MiB in twelve layers take
// 3.8 s at 20 MiB/s, in sequence 5.3 s.
//
// # Isolation
//
// A registry has a number of download slots, and all registries together one more. A download below the
// floor, in bytes a minute, is reported by [Progress], yields its slot to one waiting for another
// registry, and resumes later by a range request; a mirror below the floor is abandoned for the next
// host. After ten minutes with a slot, the rate needed to keep it while others wait doubles each
// minute. A download that keeps breaking off continues after pauses that grow until enough has come,
// also across calls. Lookups have a deadline. Local content needs no slot.
//
// # Trust
//
// Content requested by digest is verified, whoever serves it; for a tag, the configured mirrors and
// registry are trusted. HTTPS is used everywhere, except with hosts configured for plain HTTP: neither
// a redirect nor a token service can lead to plain HTTP elsewhere, nor to this device, unless that host
// is configured or the registry itself is here. Credentials are sent to the host they were given for
// and to its token service. Manifests, configurations, packages and answers are bounded.
//
// # Errors
//
// Every error about an image or package is a *fault.Error whose Code says what may be done about it,
// unless the caller gave up.
//
// The context of each call carries containerd's namespace.
package image
