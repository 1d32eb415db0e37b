// Package upgrade replaces the agent of a device in place while applications run:
// by that of the last release and back, with what it had put on the medium and with
// the shims that it had started. Where there is no release yet, the file former names
// the commit that devices come from. Its programs are built once, and kept in the
// user's cache.
package upgrade
