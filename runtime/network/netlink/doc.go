// Package netlink is what rtnetlink, nf_tables and connection tracking have in
// common: a socket to the kernel, messages of a header and attributes, and
// answers of one part or many.
//
// # Invariants
//
// Only the kernel is listened to: in the namespace of a container others may
// send as well. An error of the kernel is an *Error: it has the kernel's own
// words where there are any, and is the number it came with for errors.Is. No
// answer is waited for longer than ten seconds, save by [Conn.Receive].
//
// Numbers are in the byte order of the machine, as everywhere in netlink, but
// for those of nf_tables and connection tracking, which are as on the wire:
// Big16, Big32 and Big64.
//
// # Failure model
//
// A list that changes while the kernel writes it is asked for again. A
// connection on which something was refused may be used again: what still comes
// for an earlier request is passed over.
package netlink
