// Package log keeps the output of containers in bounded files and reads it back.
//
// It owns nothing that outlives a call. As in Docker, output is written as a line of JSON per
// line, or per 16 KiB of a longer line, which is read back as one. The files are rotated by
// their writer, a [Writer]: our shim, or a small program that a foreign shim starts for each
// container, [Serve].
//
//	<id>-json.log      before it .1, .2, ...
//
// [Merge] reads any number of logs at once, in the order of time, follows them across
// rotations, and accepts more while it runs.
//
// # Failure model
//
// Nothing here is synced. A log normally lies in memory and does not survive a reboot; it may
// be kept on flash. If there is no space left, the largest log loses its oldest file. Output
// that still cannot be written is dropped and counted: a container never waits for a full
// medium. It waits only if its log would grow by more than 4 MiB a second, after a burst of
// 8 MiB. A killed writer leaves at most one incomplete line, which the next writer ends.
package log
