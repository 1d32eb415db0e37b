// Package control is the local socket of the agent: an HTTP API with JSON bodies on a Unix socket,
// its documents, and the typed client of the command line.
//
// The socket is in the run directory and gone after a reboot. Its mode (0660) decides who may
// connect; what a caller may do is decided per route from the kernel's peer credentials, never from
// the caller's own claims. This package changes no state by itself: it translates requests into
// calls of a Backend.
package control
