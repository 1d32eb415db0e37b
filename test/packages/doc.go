// Package packages installs the packages that `make packages` made on systems of
// their own, runs the demonstration's application there, and takes them away.
//
// `make test-packages` runs it: without MARGOLITE_PACKAGES, the directory with the
// packages, there is nothing to test.
package packages
