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

// socket is one that this process listens on, in the file system.
type socket struct {
	path string
	file os.FileInfo
}

// ownSockets finds the sockets of this process. containerd looks for them, once
// the shim ends, by a name that it makes of the id of one container: it does not
// find those of a shim that serves a group.
func ownSockets() []socket {
	var own []socket
	for fd := firstSocket; fd <= lastSocket; fd++ {
		address, err := unix.Getsockname(fd)
		if err != nil {
			continue // none
		}
		named, ok := address.(*unix.SockaddrUnix)
		if !ok || !filepath.IsAbs(named.Name) {
			continue
		}
		if file, err := os.Stat(named.Name); err == nil {
			own = append(own, socket{named.Name, file})
		}
	}
	return own
}

// remove removes the socket, unless the next shim of the group has taken over
// its name.
func (s socket) remove() error {
	now, err := os.Stat(s.path)
	if err == nil && !os.SameFile(now, s.file) {
		return nil
	}
	if err == nil {
		err = os.Remove(s.path)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
