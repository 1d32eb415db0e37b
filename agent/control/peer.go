package control

import (
	"net"
	"net/http"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"
)

// Peer returns the process at the other end of a connection, without its user's name. known is
// false if the kernel cannot tell; such a caller has no privileges.
func Peer(c net.Conn) (p Caller, known bool) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return Caller{}, false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return Caller{}, false
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil || credErr != nil {
		return Caller{}, false
	}
	return Caller{UID: cred.Uid, PID: cred.Pid}, true
}

// callerOf returns who makes a request, with the user's name; the route ensures that it is known.
func callerOf(r *http.Request) Caller {
	c := connOf(r.Context()).peer
	u, err := user.LookupId(strconv.FormatUint(uint64(c.UID), 10))
	if err == nil && checkText("user", u.Username, MaxHolder) == nil { // otherwise only the number is known
		c.User = u.Username
	}
	return c
}
