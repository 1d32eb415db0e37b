// Package debimage makes container images of Debian packages, for tests that
// want to run what people run: a layer holds the files of some packages and of
// all that they depend on, with busybox below it for a shell.
//
// Nothing of a package is executed: what its installation scripts would do
// (users, directories, configuration) is the image's to say. Packages come from
// the mirrors that apt knows on this machine, and are kept below the user's
// cache directory, in margolite-test: to have newer ones, delete that.
package debimage
