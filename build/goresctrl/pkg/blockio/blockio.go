// Package blockio stands in for the one of the same name that containerd links
// for classes of block I/O. Nothing here configures such classes, and the
// package brings YAML, CBOR and JSON of Kubernetes with it: 850 KB on arm v7.
// It fails where it is asked for anything.
package blockio

import (
	"errors"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ErrLeftOut says that this build has no classes of block I/O.
var ErrLeftOut = errors.New("classes of block I/O are not part of this build")

// SetConfigFromFile fails with ErrLeftOut.
func SetConfigFromFile(string, bool) error { return ErrLeftOut }

// OciLinuxBlockIO fails with ErrLeftOut.
func OciLinuxBlockIO(string) (*specs.LinuxBlockIO, error) { return nil, ErrLeftOut }

// ContainerClassFromAnnotations finds no class.
func ContainerClassFromAnnotations(string, map[string]string, map[string]string) (string, error) {
	return "", nil
}
