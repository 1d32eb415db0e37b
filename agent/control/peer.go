package control

import (
	"context"
	"net"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"
)

// peer is the process at the other end of a connection, as the kernel knows it.
type peer struct {
	pid int32
	uid uint32
}

// privileged says whether the peer may do what the agent's own user may do.
func (p peer) privileged() bool { return Caller{UID: p.uid}.Privileged() }

// caller is the peer as the journal tells of it.
func (p peer) caller() Caller {
	c := Caller{UID: p.uid, PID: p.pid}
	u, err := user.LookupId(strconv.FormatUint(uint64(p.uid), 10))
	if err == nil && checkText("user", u.Username, MaxHolder) == nil { // else the number has to do
		c.User = u.Username
	}
	return c
}

type peerKey struct{}

// credentials tells who is at the other end of a new connection. known is false
// where the kernel cannot say; who that is has no privileges.
func credentials(c net.Conn) (p peer, known bool) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return peer{}, false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return peer{}, false
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil || credErr != nil {
		return peer{}, false
	}
	return peer{pid: cred.Pid, uid: cred.Uid}, true
}

func peerOf(ctx context.Context) (peer, bool) {
	p, ok := ctx.Value(peerKey{}).(peer)
	return p, ok
}
