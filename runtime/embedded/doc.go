// Package embedded runs containerd inside this process.
//
// It owns the choice of containerd's plugins, the two sockets (gRPC for ctr and nerdctl, ttrpc for
// the shims' events) and the choice of the runc shim. containerd keeps the state: content, snapshots
// and metadata under Root, bundles of running containers under State.
//
// # What holds content
//
// The garbage collector removes everything unreferenced, a second after a deletion and at each
// start. Content and snapshots are held by image records (the record holds its index or manifest,
// and through labels the configuration, layers and unpacked snapshots), by container records (their
// snapshot) and by leases. A download holds a lease until the image record exists; without one, its
// partial content is kept for a day.
//
// # Failure model
//
// Workloads belong to their shims, not to this process. They survive Close, a crash and kill -9, and
// the next Start finds them through their bundles under State. Metadata is bbolt: a commit is durable
// before it is answered. containerd does not sync layer files: sync the file system before recording
// an image as complete. An upgrade may have moved the program of a running shim: Start records the
// present one, so that the shim is found.
//
// # Damage
//
// bbolt ends the process when it meets damage, so its files are checked before they are opened
// (Options.Check), unless the last Close was clean. If a database is damaged, or the metadata knows
// a snapshot that its snapshotter does not, all databases are replaced, and the last damaged file is
// kept beside its place (.bad). The new metadata knows the content on the device, which a lease holds
// (containerd.RecoveredLease): images are known again when they are pulled, from that content and
// without a network, or when others are pruned. Snapshots and containers are lost. Running containers
// without a record are ended before the first call, and their creators create them again.
//
// A database gets its name when it is complete, the metadata last: after a power cut, a start continues.
//
// One Server per process at a time: containerd's logger and its place for temporary mounts are global, and a closed
// Server keeps its connections to the shims, since closing one would end the workload.
package embedded
