package image

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/test/expect"
)

// A registry elsewhere leads us neither to what listens on this device for local programs, nor to its own addresses. A
// redirect and a request for a token go by the client of the registry.
func TestARegistryElsewhereDoesNotLeadHere(t *testing.T) {
	var came atomic.Int32
	here := httptest.NewUnstartedServer(http.NotFoundHandler())
	here.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			came.Add(1)
		}
	}
	here.Listener.Close()
	here.Listener = expect.Value(net.Listen("tcp", "0.0.0.0:0"))(t) // as many programs do
	here.Start()
	t.Cleanup(here.Close)
	_, port, _ := net.SplitHostPort(here.Listener.Addr().String())
	named := "127.0.0.1:" + port
	connects := func(registry, url string, registries map[string]Registry) error {
		client := expect.Value(New(Options{Registries: registries}).httpClient(registry))(t)
		answer, err := client.Get(url)
		if err == nil {
			err = answer.Body.Close()
		}
		return err
	}

	hosts := []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254"}
	for _, a := range expect.Value(net.InterfaceAddrs())(t) {
		if own := netip.MustParsePrefix(a.String()).Addr(); own.Is4() {
			hosts = append(hosts, own.String())
		}
	}
	for _, host := range hosts {
		if err := connects("registry.example", "https://"+host+":"+port+"/blob", nil); codeOf(err) != fault.Refused || !errors.Is(err, errOwnAddress) {
			t.Errorf("%s: %v", host, err)
		}
	}
	expect.Equal(t, came.Load(), 0, "connections that came")

	expect.OK(t, connects("registry.example", "http://"+named+"/blob", map[string]Registry{named: {PlainHTTP: true}}))
	for _, registry := range []string{named, "localhost:1"} { // as a registry on this device may name others
		before := came.Load()
		if err := connects(registry, "https://"+named+"/blob", nil); errors.Is(err, errOwnAddress) || came.Load() == before {
			t.Errorf("from %s: %v", registry, err)
		}
	}
}
