package containerd_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/containerdtest"
)

func TestConnectMakesTheNamespace(t *testing.T) {
	client := containerdtest.Official(t, containerdtest.External(t))
	names, err := client.NamespaceService().List(t.Context())
	if err != nil || len(names) != 1 || names[0] != containerdtest.Namespace {
		t.Errorf("namespaces are %v, %v", names, err)
	}
	// The namespace is the default of every call.
	if all, err := client.ContainerService().List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("containers are %v, %v", all, err)
	}
}

func TestConnectWaitsNoLongerThanItsContext(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	for name, listen := range map[string]bool{"without a containerd": false, "with one that says nothing": true} {
		if listen {
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
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

// peer is a containerd that does as the tests like.
type peer struct {
	asked  chan metadata.MD
	get    func(context.Context) (*imagesapi.GetImageResponse, error)
	read   func(*contentapi.ReadContentRequest, contentapi.Content_ReadServer) error
	events func(eventsapi.Events_SubscribeServer) error
}

type (
	imagesPeer struct {
		imagesapi.UnimplementedImagesServer
		*peer
	}
	contentPeer struct {
		contentapi.UnimplementedContentServer
		*peer
	}
	eventsPeer struct {
		eventsapi.UnimplementedEventsServer
		*peer
	}
)

func (p imagesPeer) Get(ctx context.Context, _ *imagesapi.GetImageRequest) (*imagesapi.GetImageResponse, error) {
	if p.asked != nil {
		md, _ := metadata.FromIncomingContext(ctx)
		p.asked <- md
	}
	return p.get(ctx)
}

func (contentPeer) Info(context.Context, *contentapi.InfoRequest) (*contentapi.InfoResponse, error) {
	return &contentapi.InfoResponse{Info: &contentapi.Info{Digest: digest.FromString("").String(), Size: 10}}, nil
}

func (p contentPeer) Read(r *contentapi.ReadContentRequest, s contentapi.Content_ReadServer) error {
	return p.read(r, s)
}

// Write answers every step and keeps nothing.
func (contentPeer) Write(s contentapi.Content_WriteServer) error {
	for {
		if _, err := s.Recv(); err != nil {
			return nil
		}
		if err := s.Send(new(contentapi.WriteContentResponse)); err != nil {
			return err
		}
	}
}

func (p eventsPeer) Subscribe(_ *eventsapi.SubscribeRequest, s eventsapi.Events_SubscribeServer) error {
	return p.events(s)
}

// serve answers at the socket until stop.
func (p *peer) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	imagesapi.RegisterImagesServer(server, imagesPeer{peer: p})
	contentapi.RegisterContentServer(server, contentPeer{peer: p})
	eventsapi.RegisterEventsServer(server, eventsPeer{peer: p})
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) })
	stop = sync.OnceFunc(func() {
		server.Stop()
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}

func open(t *testing.T, p *peer) *client.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	p.serve(t, socket)
	return openAt(t, socket)
}

func openAt(t *testing.T, socket string) *client.Client {
	t.Helper()
	client, err := containerd.Open(socket, "usual")
	if err != nil {
		t.Fatal(err)
	}
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

func TestCallsSayWhereAndHowLong(t *testing.T) {
	var left time.Duration
	p := &peer{asked: make(chan metadata.MD, 1), get: func(ctx context.Context) (*imagesapi.GetImageResponse, error) {
		if deadline, ok := ctx.Deadline(); ok {
			left = time.Until(deadline)
		}
		return answered(ctx)
	}}
	client := open(t, p)
	ctx := leases.WithLease(namespaces.WithNamespace(t.Context(), "other"), "held")
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	if got, err := client.ImageService().Get(ctx, "a"); err != nil || got.Name != "a" {
		t.Fatalf("got %v, %v", got, err)
	}
	md := <-p.asked
	if md.Get("containerd-namespace")[0] != "other" || md.Get("containerd-lease")[0] != "held" || left < 50*time.Minute || left > time.Hour {
		t.Errorf("containerd heard %v, %s", md, left)
	}
	if _, err := client.ImageService().Get(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if md := <-p.asked; md.Get("containerd-namespace")[0] != "usual" || md.Get("containerd-lease") != nil {
		t.Errorf("containerd heard %v", md)
	}
}

func TestErrorsAreThoseOfContainerd(t *testing.T) {
	for name, test := range map[string]struct {
		get  func(context.Context) (*imagesapi.GetImageResponse, error)
		want error
	}{
		"not found": {func(context.Context) (*imagesapi.GetImageResponse, error) {
			return nil, status.Error(codes.NotFound, `image "a": not found`)
		}, errdefs.ErrNotFound},
		"not there at all": {func(context.Context) (*imagesapi.GetImageResponse, error) {
			return nil, status.Error(codes.Unimplemented, "no")
		}, errdefs.ErrNotImplemented},
		"too long an answer": {func(context.Context) (*imagesapi.GetImageResponse, error) {
			return &imagesapi.GetImageResponse{Image: &imagesapi.Image{Name: strings.Repeat("x", 17<<20)}}, nil
		}, errdefs.ErrResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := open(t, &peer{get: test.get}).ImageService().Get(t.Context(), "a")
			if !errors.Is(err, test.want) {
				t.Errorf("error is %v, want %v", err, test.want)
			}
		})
	}
}

func TestTooLongAnErrorIsRefused(t *testing.T) {
	client := open(t, &peer{get: func(context.Context) (*imagesapi.GetImageResponse, error) {
		return nil, status.Error(codes.NotFound, strings.Repeat("x", 1<<20))
	}})
	if _, err := client.ImageService().Get(t.Context(), "a"); err == nil || len(err.Error()) > 1<<16 {
		t.Errorf("the error is %.80v", err)
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	asked := make(chan metadata.MD, 1)
	ended := make(chan struct{})
	client := open(t, &peer{asked: asked, get: func(ctx context.Context) (*imagesapi.GetImageResponse, error) {
		defer close(ended)
		return silent(ctx)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := client.ImageService().Get(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	<-ended // containerd has heard of it
}

func TestCallsEndWithTheirClient(t *testing.T) {
	asked := make(chan metadata.MD, 1)
	client := open(t, &peer{asked: asked, get: silent})
	go func() {
		<-asked
		client.Close()
	}()
	for _, when := range []string{"under way", "too late"} {
		if _, err := client.ImageService().Get(t.Context(), "a"); err == nil {
			t.Errorf("a call that is %s succeeds", when)
		}
	}
}

// Calls fail while containerd is away, and at once; it is found again within about a second.
func TestContainerdComesBack(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	asked := make(chan metadata.MD, 1)
	stop := (&peer{asked: asked, get: silent}).serve(t, socket)
	client := openAt(t, socket)
	go func() {
		<-asked
		stop()
	}()
	get := func() error {
		_, err := client.ImageService().Get(t.Context(), "a")
		return err
	}
	if err := get(); !errdefs.IsUnavailable(err) {
		t.Errorf("while containerd dies the error is %v", err)
	}
	for begun := time.Now(); time.Since(begun) < 3*time.Second; time.Sleep(100 * time.Millisecond) {
		asked := time.Now()
		if err := get(); !errdefs.IsUnavailable(err) {
			t.Errorf("while containerd is gone the error is %v", err)
		}
		if took := time.Since(asked); took > time.Second {
			t.Errorf("it came after %s", took)
		}
	}
	(&peer{get: answered}).serve(t, socket)
	back := time.Now()
	for err := get(); err != nil; err = get() {
		if time.Since(back) > 3*time.Second {
			t.Fatalf("containerd is back: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("found after %s", time.Since(back))
}

func TestBlobIsReadFromAnywhere(t *testing.T) {
	blob := []byte("0123456789")
	client := open(t, &peer{read: func(r *contentapi.ReadContentRequest, s contentapi.Content_ReadServer) error {
		for part := range bytes.SplitSeq(blob[r.Offset:min(r.Offset+r.Size, 10)], nil) {
			if err := s.Send(&contentapi.ReadContentResponse{Data: part}); err != nil {
				return err
			}
		}
		return nil
	}})
	r, err := client.ContentStore().ReaderAt(t.Context(), v1.Descriptor{Digest: digest.FromString("")})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		off  int64
		size int
		want string
		err  error
	}{{0, 10, "0123456789", nil}, {3, 4, "3456", nil}, {8, 4, "89", io.EOF}, {4, 0, "", nil}} {
		p := make([]byte, test.size)
		n, err := r.ReadAt(p, test.off)
		if string(p[:n]) != test.want || !errors.Is(err, test.err) {
			t.Errorf("%d bytes at %d are %q, %v", test.size, test.off, p[:n], err)
		}
	}
}

func TestSubscriptionTellsItsEnd(t *testing.T) {
	broken := make(chan struct{})
	client := open(t, &peer{events: func(s eventsapi.Events_SubscribeServer) error {
		if err := s.Send(&types.Envelope{Topic: "/a"}); err != nil {
			return err
		}
		select {
		case <-broken:
			return status.Error(codes.Unavailable, "it ends")
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}})
	come, ended := client.EventService().Subscribe(t.Context())
	if event := <-come; event.Topic != "/a" {
		t.Errorf("came %v", event)
	}
	close(broken)
	if err := <-ended; !errdefs.IsUnavailable(err) {
		t.Errorf("ended with %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, ended = client.EventService().Subscribe(ctx)
	cancel() // while an event waits that nobody takes
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("given up, it says %v", err)
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
		"a page": func(l net.Listener) {
			server := http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "<html>")
			})}
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
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			var running sync.WaitGroup
			running.Go(func() { serve(l) })
			defer running.Wait()
			defer l.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := containerd.Connect(ctx, socket, "margo"); err == nil {
				t.Error("it is taken for containerd")
			}
		})
	}
}

func TestNothingIsLeftOfCalls(t *testing.T) {
	p := &peer{
		get: answered,
		read: func(_ *contentapi.ReadContentRequest, s contentapi.Content_ReadServer) error {
			for { // more than anybody asked for
				if err := s.Send(&contentapi.ReadContentResponse{Data: []byte("0123456789")}); err != nil {
					return err
				}
			}
		},
		events: func(s eventsapi.Events_SubscribeServer) error {
			<-s.Context().Done()
			return nil
		},
	}
	client := open(t, p)
	each := func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if _, err := client.ImageService().Get(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		r, err := client.ContentStore().ReaderAt(ctx, v1.Descriptor{Digest: digest.FromString("")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadAt(make([]byte, 5), 0); err != nil {
			t.Fatal(err)
		}
		w, err := client.ContentStore().Writer(ctx, content.WithRef("a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		_, ended := client.EventService().Subscribe(ctx)
		cancel()
		<-ended
	}
	each()
	before := runtime.NumGoroutine()
	for range 50 {
		each()
	}
	// Those of the connection end each in its own time.
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before+5; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, before %d", runtime.NumGoroutine(), before)
		}
	}
}
