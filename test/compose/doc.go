// Package compose holds the runtime to the Compose specification: every
// attribute that runtime/README.md says works is tried on real containers, on
// the containerd inside margolite and on the one of the distribution.
//
// A test is a Compose file in testdata/attributes, named after the attribute.
// Its key x-test says what is done and what must come of it, see [step]. After
// each test nothing may be left on the machine. testdata/project is one file of much
// that Compose has: all that make test runs of this.
package compose
