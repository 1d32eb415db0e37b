// Package upgrade replaces the agent of a device in place while applications run:
// by that of another commit and back, with what it had put on the medium and with
// the shims that it had started.
package upgrade
