// Package log keeps the output of containers in bounded files and reads it back.
//
// It owns nothing that runs. Our shim writes what a container prints as Docker
// does, a line of JSON for each line, or for each 16 KiB of a longer one, which is
// read as one again, and rotates its files itself: [Writer]. A shim of somebody else's appends plain text, which [Rotate] keeps small. Which
// of both it is shows in the name of the file, never in its content: a program
// may print what looks like a log.
//
//	<id>-json.log      written by our shim; before it .1, .2, ...
//	<id>.log           written by another shim; before it .1
//
// [Merge] reads any number of logs at once, in the order of time, follows them
// across rotations, and takes further ones while it runs.
//
// # Failure model
//
// Nothing here is synced. A log is expected on a file system in memory, where it
// does not survive a reboot; it may be kept on flash. Where there is no room left, the
// largest log loses its oldest file. Output that still cannot be written is dropped and
// counted: a container never waits for a medium that is full. It waits for its log only
// where that would grow by more than 4 MiB a second, after a burst of 8 MiB. A shim that
// was killed leaves at most one line that is not whole, which the next one ends.
package log
