package control

import (
	"context"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peer is the process at the other end of a connection, as the kernel knows it.
type peer struct {
	pid int32
	uid uint32
}

// privileged says whether the peer may do what the agent's own user may do.
func (p peer) privileged() bool { return p.uid == 0 || int(p.uid) == os.Geteuid() }

type peerKey struct{}

// withPeer keeps the credentials of a new connection in its context. A
// connection without them has no privileges.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil || credErr != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, peer{pid: cred.Pid, uid: cred.Uid})
}

func peerOf(ctx context.Context) (peer, bool) {
	p, ok := ctx.Value(peerKey{}).(peer)
	return p, ok
}
