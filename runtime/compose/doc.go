// Package compose turns the bytes of a Compose package into a project that the
// runtime can apply: [Extract] puts a package on disk, [Load] reads the Compose
// file in it. It knows neither where packages come from nor what runs them.
//
// The bytes are hostile until proven otherwise. An archive is checked as a whole
// before the first byte of it is written, and what is written cannot leave the
// directory it was meant for. A Compose file is bounded in size, depth, number of
// nodes, number of files and growth by interpolation before compose-go sees it,
// and compose-go reads only files that were checked first.
//
// Nothing in a Compose file is ignored in silence. Whatever this runtime cannot do
// is an [Error] that names service and key; all of them are reported at once, but
// for a key that the Compose specification does not have, where compose-go stops.
// What has no meaning on a device is a warning that names them (Project.Warnings).
// Keys that only inform people, and x- extensions, are passed over.
// runtime/README.md has each attribute of the specification; a test holds this
// package to it.
//
// What is read is resolved here once and for all: defaults, short forms, files,
// variables, profiles, dependencies that other keys imply, the order of networks.
// Whoever runs a [Project] looks at nothing else.
//
// Failure model: an error with fault.InvalidPackage, or with fault.Unsupported and an
// [Error] for each key, is that of the bytes and comes back with them. Every other one is
// the device's (no space, input/output, the context) and may pass. An extracted
// package survives a power cut as a whole or not at all.
package compose
