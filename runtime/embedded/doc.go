// Package embedded runs containerd inside this process.
//
// It owns the choice of containerd's plugins, the two sockets (gRPC for ctr and nerdctl, ttrpc for the events of the
// shims) and the program that serves as runc shim. What runs is kept by containerd: content, snapshots and metadata
// under Root, bundles of running containers under State.
//
// # What holds content
//
// The garbage collector removes whatever nothing points at, a second after something was deleted and at each start.
// Content and snapshots are held by image records (the record holds its index or manifest, and through labels the
// configuration, the layers and the unpacked snapshots), by container records (their snapshot) and by leases.
// Whoever downloads holds a lease until the image record exists; without one, what has come of a download is kept for
// a day.
//
// # Failure model
//
// Workloads belong to their shims, not to this process. Close, a crash or kill -9 leave them running, and the next
// Start finds them through their bundles under State. Metadata is bbolt: a commit is on the medium before it is
// answered. Layer files are not synced by containerd; whoever records that an image is complete syncs the file
// system first. The program of a running shim may have moved since it was started, for instance by an upgrade;
// Start then records the present one, so that the shim is still found.
//
// # Damage
//
// bbolt ends the process where it meets damage, so that its files are checked before they are opened (Options.Check), unless
// the last Close was in order. A damaged database, or metadata that knows a snapshot which its snapshotter does not, replaces
// all databases, and the damaged file is kept beside its place (.bad, the last one). The new metadata knows the content that
// is on the device, which a lease holds (containerd.RecoveredLease): images are known again when they are pulled, from that
// content and without a network, or when others are pruned. Snapshots and containers are lost. What still runs has no record
// any more; it is ended before anybody can ask for it, and whoever created it does so again.
//
// A database gets its name when it is complete, and the metadata is missing until then: a start after a power cut goes on.
//
// One Server per process at a time: containerd's logger and its place for temporary mounts are global, and a closed
// Server keeps its connections to the shims, since closing one would end the workload.
package embedded
