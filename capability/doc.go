// Package capability finds out what the machine offers: processors, memory, storage, interfaces,
// peripherals and the machine's own identity; and reports when that may have changed. README.md
// lists what is read from where.
//
// It reads files below a root directory (/proc, /sys, /etc, /run), asks the kernel for the size of
// one file system, and listens to its events. It changes nothing, opens no device and starts
// nothing. It knows hardware facts and units, but no wire format.
//
// Invariants: every read is bounded in bytes and entries, except gopsutil's of procfs, where only
// the kernel writes. Facts have a stable order, so an unchanged machine gives equal facts.
//
// Failure model: a fact that does not exist or cannot be read stays at its zero value; a failed
// read is also part of the joined error. The facts are usable whatever the error says. No state is
// kept.
package capability
