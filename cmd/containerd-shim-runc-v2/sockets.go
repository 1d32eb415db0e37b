package main

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The sockets that a shim inherits from its starter: the main one, and possibly one for debugging.
const (
	firstSocket = 3
	lastSocket  = 4
)

// ownSockets returns the paths of the sockets that this process listens on. containerd looks for
// them, once the shim ends, by a name derived from one container's id, which fails for a shim of a
// group. The main one comes last: without it another shim may start and replace the one for
// debugging.
func ownSockets() []string {
	var own []string
	for fd := lastSocket; fd >= firstSocket; fd-- {
		address, err := unix.Getsockname(fd)
		if err != nil {
			continue // none
		}
		if named, ok := address.(*unix.SockaddrUnix); ok && filepath.IsAbs(named.Name) {
			own = append(own, named.Name)
		}
	}
	return own
}

// remove removes the names of sockets on which this process still listens: no other shim uses them.
func remove(sockets []string) (err error) {
	for _, path := range sockets {
		if failed := os.Remove(path); !errors.Is(failed, os.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}
