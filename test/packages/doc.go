// Package packages installs the packages that `make packages` made on systems of
// their own, runs the demonstration's application there, and takes them away.
//
// `make test-packages` runs it, with the build tag packages, and with the directory
// of the packages in MARGOLITE_PACKAGES.
package packages
