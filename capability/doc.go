// Package capability finds out what the machine offers: processors, memory,
// storage, network interfaces, graphics processors and the machine's own
// identity.
//
// It reads files below a root directory (/proc, /sys, /etc) and asks the kernel
// for the size of one file system; it changes nothing and starts nothing. It
// knows hardware facts and units, and no wire format.
//
// Invariants: every read is bounded in bytes and entries; what is found comes
// in a stable order, so that a machine that did not change gives equal facts.
//
// Failure model: a fact that a machine simply does not have stays at its zero
// value. One that cannot be read does too, and the reason is part of the joined
// error that comes back beside the facts. The facts are usable whatever the
// error says.
package capability
