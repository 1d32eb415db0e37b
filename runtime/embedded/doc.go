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
// bbolt ends the process where it meets damage, so that its files are looked at before they are opened (Options.Check).
// Where the last transaction is damaged, the one before it counts: containers run on. Where a whole database is, it is
// set aside (.bad, the last one) and made anew:
//
//   - Without that of the metadata, the new one knows the content that there is, which a lease holds
//     (containerd.RecoveredLease); images are known again when they are pulled, from that content, or when others are
//     pruned. Snapshots and containers are lost.
//   - Without that of a snapshotter, its snapshots are lost with the containers on them; images are unpacked again when
//     they are pulled.
//
// The metadata never knows a snapshot that its snapshotter does not: where transactions were lost, such records go at the
// start, with their containers. What runs without a record is ended before anybody can ask for it, and whoever made it
// makes it anew. A database gets its name when it is complete, and what is damaged stays until then: a start after a
// power cut goes on.
//
// One Server per process at a time: containerd's logger and its place for temporary mounts are global, and a closed
// Server keeps its connections to the shims, since closing one would end the workload.
//
// With the build tag slim nothing of containerd's server is linked, and Start returns ErrNotEmbedded.
package embedded
