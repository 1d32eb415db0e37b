// Package compose turns the bytes of a Compose package into a project that the
// runtime can apply: [Extract] puts a package on disk, [Load] reads the Compose
// file in it. It knows neither where packages come from nor what runs them.
//
// The bytes are hostile until proven otherwise. An archive is checked as a whole before
// anything is written, and cannot write outside its directory. A Compose file is bounded in
// size, depth, number of nodes, number of files and growth by interpolation before compose-go
// sees it, and compose-go reads only files that were checked first.
//
// Nothing in a Compose file is ignored silently. An unsupported key is an [Error] that names
// service and key; all of them are reported at once, except keys unknown to the Compose
// specification, where compose-go stops. A key without a meaning on a device is named in
// a warning (Project.Warnings). Informative keys and x- extensions are accepted.
// runtime/README.md lists each attribute of the specification; a test compares this package
// with it.
//
// Everything is resolved here: defaults, short forms, files, variables, profiles, implied
// dependencies, the order of networks. To run a [Project], nothing else needs to be read.
//
// Failure model: errors with fault.InvalidPackage, or with fault.Unsupported and an [Error]
// for each key, are caused by the bytes and permanent. Every other error is the device's (no
// space, input/output, the context) and may pass. A power cut leaves an extracted package
// complete or absent.
package compose
