package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/plugin"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// sockets are containerd's two servers: gRPC for clients, ttrpc for the events of shims.
type sockets struct {
	grpc    *grpc.Server
	ttrpc   *ttrpc.Server
	serving sync.WaitGroup
}

func ttrpcAddress(address string) string { return address + ".ttrpc" }

// serve listens on both sockets and registers the services of the plugins.
func serve(ctx context.Context, address string, set *plugin.Set, log *slog.Logger) (*sockets, error) {
	s := &sockets{grpc: grpc.NewServer(
		grpc.MaxRecvMsgSize(defaults.DefaultMaxRecvMsgSize),
		grpc.MaxSendMsgSize(defaults.DefaultMaxSendMsgSize),
		grpc.UnaryInterceptor(unaryNamespace),
	)}
	var err error
	if s.ttrpc, err = ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser())); err != nil {
		return nil, fmt.Errorf("cannot create ttrpc server: %w", err)
	}
	for _, p := range set.GetAll() {
		instance, _ := p.Instance() // each has come up
		if service, ok := instance.(interface{ Register(*grpc.Server) error }); ok {
			err = errors.Join(err, service.Register(s.grpc))
		}
		if service, ok := instance.(interface{ RegisterTTRPC(*ttrpc.Server) error }); ok {
			err = errors.Join(err, service.RegisterTTRPC(s.ttrpc))
		}
		if err != nil {
			return nil, fmt.Errorf("cannot register service of containerd: %w", err)
		}
	}

	forClients, err := listen(ctx, address)
	if err != nil {
		return nil, err
	}
	forShims, err := listen(ctx, ttrpcAddress(address))
	if err != nil {
		return nil, errors.Join(err, forClients.Close())
	}
	s.serving.Go(func() {
		if err := s.grpc.Serve(forClients); err != nil {
			log.Error("containerd stopped serving", "address", address, "error", err)
		}
	})
	s.serving.Go(func() {
		if err := s.ttrpc.Serve(ctx, forShims); !errors.Is(err, ttrpc.ErrServerClosed) {
			log.Error("containerd stopped listening to shims", "address", ttrpcAddress(address), "error", err)
		}
	})
	return s, nil
}

func (s *sockets) close() {
	s.grpc.Stop()
	_ = s.ttrpc.Close() // what it reports is the listener, which Serve has closed
	s.serving.Wait()
}

// listen takes over the address, whose former owner is gone, as the metadata's lock shows. The mode is
// set before the socket has its name, so that others can never connect.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot remove stale socket: %w", err)
	}
	lc := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var err error
		if cerr := conn.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for containerd: %w", err)
	}
	return l, nil
}

// unaryNamespace passes the caller's namespace on to the shims, which no stream reaches.
func unaryNamespace(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if ns, ok := namespaces.Namespace(ctx); ok {
		ctx = namespaces.WithNamespace(ctx, ns)
	}
	return handle(ctx, req)
}
