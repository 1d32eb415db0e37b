package containerd_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/expect"
)

func TestConnectWaitsNoLongerThanItsContext(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	for name, listen := range map[string]bool{"without a containerd": false, "with one that says nothing": true} {
		if listen {
			l := expect.Value(net.Listen("unix", socket))(t)
			defer l.Close()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := containerd.Connect(ctx, socket, "margo")
		if err == nil || ctx.Err() == nil || !strings.Contains(err.Error(), socket) || errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// peer is a containerd that answers who asks for an image, and knows nothing else.
type peer struct {
	imagesapi.UnimplementedImagesServer
	asked chan struct{} // may be nil
	get   func(context.Context) (*imagesapi.GetImageResponse, error)
}

func (p *peer) Get(ctx context.Context, _ *imagesapi.GetImageRequest) (*imagesapi.GetImageResponse, error) {
	if p.asked != nil {
		p.asked <- struct{}{}
	}
	return p.get(ctx)
}

// serve answers at the socket until stop.
func (p *peer) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	l := expect.Value(net.Listen("unix", socket))(t)
	server := grpc.NewServer()
	imagesapi.RegisterImagesServer(server, p)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) })
	stop = sync.OnceFunc(func() {
		server.Stop()
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}

func openAt(t *testing.T, socket string) *client.Client {
	t.Helper()
	client := expect.Value(containerd.Open(socket, "usual"))(t)
	t.Cleanup(func() { client.Close() })
	return client
}

// answered is the answer of a peer to who asks for an image.
func answered(context.Context) (*imagesapi.GetImageResponse, error) {
	return &imagesapi.GetImageResponse{Image: &imagesapi.Image{Name: "a", Target: new(types.Descriptor)}}, nil
}

// silent is no answer for as long as somebody waits for it.
func silent(ctx context.Context) (*imagesapi.GetImageResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestTooLongAnErrorIsRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	(&peer{get: func(context.Context) (*imagesapi.GetImageResponse, error) {
		return nil, status.Error(codes.NotFound, strings.Repeat("x", 1<<20))
	}}).serve(t, socket)
	client := openAt(t, socket)
	if _, err := client.ImageService().Get(t.Context(), "a"); err == nil || len(err.Error()) > 1<<16 {
		t.Errorf("the error is %.80v", err)
	}
}

// Calls fail as unavailable while containerd is away, without waiting for it. It is found again when it is back.
func TestContainerdComesBack(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a call that waited would fail otherwise
	defer cancel()
	socket := filepath.Join(t.TempDir(), "s")
	asked := make(chan struct{}, 1)
	stop := (&peer{asked: asked, get: silent}).serve(t, socket)
	client := openAt(t, socket)
	go func() {
		<-asked
		stop()
	}()
	get := func() error {
		_, err := client.ImageService().Get(ctx, "a")
		return err
	}
	for _, when := range []string{"dies", "is gone", "is still gone"} {
		if err := get(); !errdefs.IsUnavailable(err) {
			t.Errorf("while containerd %s the error is %v", when, err)
		}
	}
	(&peer{get: answered}).serve(t, socket)
	for err := get(); err != nil; err = get() {
		expect.Require(t, ctx.Err() == nil, "containerd is back: %v", err)
		time.Sleep(10 * time.Millisecond)
	}
}

func TestSomebodyElseAtTheSocket(t *testing.T) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	for name, serve := range map[string]func(net.Listener){
		"a web server": func(l net.Listener) {
			server := http.Server{Protocols: protocols, Handler: http.NotFoundHandler()}
			_ = server.Serve(l)
		},
		"garbage": func(l net.Listener) {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, strings.Repeat("garbage ", 10))
				conn.Close()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			l := expect.Value(net.Listen("unix", socket))(t)
			var running sync.WaitGroup
			running.Go(func() { serve(l) })
			defer running.Wait()
			defer l.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			expect.ErrorWith(t, expect.ErrorOf(containerd.Connect(ctx, socket, "margo")), "", "connecting")
		})
	}
}

var check = expect.Check
