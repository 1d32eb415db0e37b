package image_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
)

const (
	hereAddress = "10.213.0.1"
	farAddress  = "10.213.0.2"
)

// elsewhere is a place on another device, as far as the network tells. Its servers listen on farAddress, and reach this one
// at hereAddress.
func elsewhere(t *testing.T) (listen func() net.Listener) {
	t.Helper()
	name := "image-test"
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Skipf("needs another network namespace: ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	run("netns", "add", name)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	run("link", "add", "far0", "type", "veth", "peer", "name", "far1", "netns", name)
	run("addr", "add", hereAddress+"/30", "dev", "far0")
	run("link", "set", "far0", "up")
	run("-n", name, "addr", "add", farAddress+"/30", "dev", "far1")
	run("-n", name, "link", "set", "far1", "up")
	return func() net.Listener {
		t.Helper()
		type result struct {
			net.Listener
			error
		}
		done := make(chan result)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			l, err := listenIn(filepath.Join("/run/netns", name), farAddress+":0")
			done <- result{l, err}
		}()
		r := <-done
		if r.error != nil {
			t.Fatal(r.error)
		}
		return r.Listener
	}
}

func listenIn(netns, address string) (net.Listener, error) {
	fd, err := unix.Open(netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	return net.Listen("tcp4", address)
}

// counting counts the connections that come.
type counting struct {
	net.Listener
	came atomic.Int32
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.came.Add(1)
	}
	return conn, err
}

func serveOn(t *testing.T, l net.Listener, h http.Handler) (host string) {
	server := httptest.NewUnstartedServer(h)
	server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return l.Addr().String()
}

// A registry elsewhere leads us neither to what listens on this device for local programs, nor to its own addresses.
func TestARegistryElsewhereDoesNotLeadHere(t *testing.T) {
	client := containerdtest.Embedded(t)
	ctx := containerdtest.Context(t)
	listen := elsewhere(t)
	far := watch(t)
	storage := serveOn(t, listen(), far.next)
	pushedTo := far.host
	farHost := serveOn(t, listen(), far)

	inner, err := net.Listen("tcp", "0.0.0.0:0") // as many programs do
	if err != nil {
		t.Fatal(err)
	}
	here := &counting{Listener: inner}
	serveOn(t, here, far.next)
	_, port, _ := net.SplitHostPort(inner.Addr().String())

	for name, test := range map[string]struct {
		to    string // host of the blobs
		token bool   // it is the token service, not the storage
		want  image.Kind
	}{
		"another storage elsewhere":      {to: storage},
		"loopback":                       {to: "127.0.0.1:" + port, want: image.Refused},
		"loopback by name":               {to: "localhost:" + port, want: image.Refused},
		"loopback of IPv6":               {to: "[::1]:" + port, want: image.Refused},
		"loopback of IPv4 in IPv6":       {to: "[::ffff:127.0.0.1]:" + port, want: image.Refused},
		"any address":                    {to: "0.0.0.0:" + port, want: image.Refused},
		"an address of this device":      {to: hereAddress + ":" + port, want: image.Refused},
		"link-local":                     {to: "169.254.169.254:80", want: image.Refused},
		"a token service on this device": {to: "127.0.0.1:" + port, token: true, want: image.Refused},
		"what the configuration names":   {to: "127.0.0.1:" + port},
	} {
		t.Run(name, func(t *testing.T) {
			repository := strings.NewReplacer(" ", "-", "IPv", "ipv").Replace(name)
			containerdtest.Push(t, containerdtest.Busybox(t, nil), pushedTo+"/"+repository+":1")
			scheme := "https"
			registries := map[string]image.Registry{farHost: {PlainHTTP: true}}
			if test.want == "" {
				scheme = "http"
				registries[test.to] = image.Registry{PlainHTTP: true}
			}
			far.set(func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case test.token:
					w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s://%s/token"`, scheme, test.to))
					w.WriteHeader(http.StatusUnauthorized)
				case strings.Contains(r.URL.Path, "/blobs/"):
					http.Redirect(w, r, scheme+"://"+test.to+r.URL.Path, http.StatusTemporaryRedirect)
				default:
					return false
				}
				return true
			})
			defer far.set(nil)
			before := here.came.Load()
			_, err := open(t, client, registries).Pull(ctx, image.Want{Ref: farHost + "/" + repository + ":1"}, nil)
			if kind(err) != test.want {
				t.Errorf("%v of kind %q, want %q", err, kind(err), test.want)
			}
			if came := here.came.Load() - before; test.want != "" && came > 0 {
				t.Errorf("%d connections came", came)
			}
		})
	}
}
