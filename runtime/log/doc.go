// Package log keeps the output of containers in bounded files and reads it back.
//
// It owns nothing that outlives a call. What a container prints is written as Docker does, a line of
// JSON for each line, or for each 16 KiB of a longer one, which is read as one again. The
// files are rotated by whoever writes them, a [Writer]: our shim, or a small program that
// a shim of somebody else's starts for each container, [Serve].
//
//	<id>-json.log      before it .1, .2, ...
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
// where that would grow by more than 4 MiB a second, after a burst of 8 MiB. A writer that
// was killed leaves at most one line that is not whole, which the next one ends.
package log
