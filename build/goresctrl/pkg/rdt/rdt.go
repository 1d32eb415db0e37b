// Package rdt stands in for the one of the same name that containerd links for
// Intel RDT unless it is built with no_rdt. It fails where it is asked for
// anything.
package rdt

import "errors"

// ErrLeftOut says that this build has no Intel RDT.
var ErrLeftOut = errors.New("classes of Intel RDT are not part of this build")

// Initialize fails with ErrLeftOut.
func Initialize(string) error { return ErrLeftOut }

// SetConfigFromFile fails with ErrLeftOut.
func SetConfigFromFile(string, bool) error { return ErrLeftOut }

// ContainerClassFromAnnotations finds no class.
func ContainerClassFromAnnotations(string, map[string]string, map[string]string) (string, error) {
	return "", nil
}
