package main

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The sockets that whoever starts a shim hands to it: the first, and the one for debugging if there is any.
const (
	firstSocket = 3
	lastSocket  = 4
)

// ownSockets finds the paths of the sockets that this process listens on. containerd
// looks for them, once the shim ends, by a name that it makes of the id of one
// container: it does not find those of a shim that serves a group. The first comes
// last: without it another shim may start, and replace the one for debugging.
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

// remove removes the names of sockets on which this process still listens: no other shim has taken them over.
func remove(sockets []string) (err error) {
	for _, path := range sockets {
		if failed := os.Remove(path); !errors.Is(failed, os.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}
