// Package control is the local socket of the agent: an HTTP API with JSON
// bodies on a Unix socket, its documents, and the typed client that the
// command line uses.
//
// The socket belongs to the run directory and is gone after a reboot. Its mode
// (0660) decides who may connect; what a caller may then do is decided per
// route from the peer credentials that the kernel reports, never from anything
// the caller says. Nothing in this package changes state by itself: it
// translates requests into calls of a Backend.
package control
