// Package capability finds out what the machine offers: processors, memory,
// storage, interfaces, peripherals and the machine's own identity; and tells when
// that may have changed. README.md has what is read from where.
//
// It reads files below a root directory (/proc, /sys, /etc, /run), asks the
// kernel for the size of one file system, and listens to its events; it changes
// nothing, opens no device and starts nothing. It knows hardware facts and units,
// and no wire format.
//
// Invariants: every read is bounded in bytes and entries, except gopsutil's of
// procfs, where only the kernel writes. Facts come in a stable order, so an
// unchanged machine gives equal facts.
//
// Failure model: a fact that a machine simply does not have stays at its zero
// value. One that cannot be read does too, and the reason is part of the joined
// error that comes back beside the facts. The facts are usable whatever the
// error says. Nothing is kept, so nothing has to survive a reboot.
package capability
