// Package medium is a block device whose faults a test decides about: what was
// written and not flushed is lost with the power, or any part of it; a write or
// a flush fails; a flush takes its time. A file system on it is the kernel's own,
// with everything that it does after such a fault.
//
// # How
//
// The content is in memory (Disk). A file system in user space shows it as one
// file, which a loop device makes a block device of: what the kernel asks of that
// arrives here as reads, writes and syncs, in the order in which a disk gets
// them, and nothing in between keeps anything. Neither modules nor a device
// mapper are needed, only /dev/fuse, /dev/loop-control and root.
//
// # What whoever uses it must not do
//
// The process that serves a disk must not map files on it into memory, and not
// start programs from it: a page fault there stops this very program, and who
// would answer it? Reading and writing files is fine.
//
// # What is left behind
//
// Nothing: loop devices let go with the last unmount, and the disk is gone with
// the process, however that ends: the kernel answers with I/O errors then.
package medium
