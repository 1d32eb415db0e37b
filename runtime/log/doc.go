// Package log keeps the output of containers in bounded files and reads it back.
//
// It owns nothing that runs: the shim of a container appends its output to the
// file named by [Path] (opened with O_APPEND, so truncation is safe), [Rotate]
// keeps that file small, [Read] copies it, following it where asked.
//
// A log is two files, the one written to and the one before it (".1"); together
// they hold at most about twice the cap. They are expected on a file system in
// memory: nothing here is synced, and nothing survives a reboot.
package log
