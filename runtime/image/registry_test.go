package image_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/dockerregistry"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

// secured puts TLS before a handler and returns its host and the file of its authority.
func secured(t testing.TB, next http.Handler) (host, ca string) {
	t.Helper()
	server := httptest.NewUnstartedServer(next)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return strings.TrimPrefix(server.URL, "https://"), writeFile(t, "ca.pem", certificate)
}

// before forwards requests to a registry.
func before(host string) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: host})
			r.Out.Host = r.In.Host // or redirects would lead around
			r.SetXForwarded()
		},
		ErrorLog: log.New(io.Discard, "", 0),
	}
}

func basic(user, password string) string {
	return `{"auth":"` + base64.StdEncoding.EncodeToString([]byte(user+":"+password)) + `"}`
}

// hunter2 is the password, as htpasswd writes it with bcrypt.
const hunter2 = "$2b$04$abcdefghijklmnopqrstuuV3duMsC0HpUex6N9qapiuOHHWkwRXVm"

func TestPullFromDockersRegistryWithPasswords(t *testing.T) {
	passwords := writeFile(t, "htpasswd", []byte("device:"+hunter2+"\n"))
	plain := dockerregistry.Start(t, "auth: {htpasswd: {realm: plant, path: "+passwords+"}}\n")
	app := build(t, "", "app")
	expect.Check(t, (ociimage.Registry{URL: "http://" + plain, User: "device", Password: "hunter2"}).Push(t.Context(), "app", "1", app))
	host, ca := secured(t, before(plain))
	file := filepath.Join(t.TempDir(), "config.json")
	each(t, func(t *testing.T, ctx context.Context, client containerd.Client, _ *watched) {
		for name, test := range map[string]struct {
			registry    image.Registry
			host, entry string // of its credentials
			want        fault.Code
			says        string
		}{
			"nobody":          {image.Registry{CA: ca}, host, "{}", fault.Denied, "other credentials"},
			"a wrong one":     {image.Registry{CA: ca}, host, basic("device", "wrong"), fault.Denied, "other credentials"},
			"another host's":  {image.Registry{CA: ca}, "another", basic("device", "hunter2"), fault.Denied, ""},
			"no authority":    {image.Registry{}, host, basic("device", "hunter2"), fault.Unreachable, "set ca in its entry"},
			"none, it's said": {image.Registry{Insecure: true}, host, basic("device", "hunter2"), "", ""},
			"the right one":   {image.Registry{CA: ca}, host, basic("device", "hunter2"), "", ""},
		} {
			t.Run(name, func(t *testing.T) {
				test.registry.Credentials = file
				images := open(t, client, map[string]image.Registry{host: test.registry})
				// The file is read for each pull, and may be replaced before one.
				expect.Check(t, os.WriteFile(file, fmt.Appendf(nil, `{"auths":{%q:%s}}`, test.host, test.entry), 0o600))
				_, err := pullOne(ctx, images, image.Want{Ref: host + "/app:1", Policy: image.Always}, nil)
				fails(t, err, test.want, test.says, "pull")
				expect.Equal(t, strings.Contains(fmt.Sprint(err), "hunter2"), false, "the error tells the password")
			})
		}
	})
}

func TestCheckReadsWhatARegistryNames(t *testing.T) {
	for _, r := range []image.Registry{{CA: "/nowhere"}, {Credentials: "/nowhere"}} {
		expect.ErrorWith(t, r.Check("registry.example.com"), "/nowhere", "check")
	}
	expect.OK(t, (image.Registry{}).Check("registry.example.com"))
}

// A server that wants to see the certificate of the device is shown it, and the error tells where that is missing.
func TestPKG12PullShowsACertificate(t *testing.T) {
	ctx, client, w := fresh(t)
	containerdtest.Push(t, containerdtest.Busybox(t, nil), w.host+"/app:1")
	secure := httptest.NewUnstartedServer(w)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	secure.StartTLS()
	t.Cleanup(secure.Close)
	host := strings.TrimPrefix(secure.URL, "https://")
	secret := expect.Value(x509.MarshalPKCS8PrivateKey(secure.TLS.Certificates[0].PrivateKey))(t)
	save := func(kind string, data []byte) string { // as Windows saves it
		return writeFile(t, "file.pem", append([]byte("\ufeff"), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data})...))
	}
	ca, key := save("CERTIFICATE", secure.Certificate().Raw), save("PRIVATE KEY", secret)
	get := func(r image.Registry) (pull, fetch error) {
		images := open(t, client, map[string]image.Registry{host: r})
		_, pull = pullOne(ctx, images, image.Want{Ref: host + "/app:1"}, nil)
		_, fetch = images.Location(ctx, image.Source{Package: secure.URL + "/v2/"}, image.ArtifactLimits{Size: 1 << 20}, nil)
		return pull, fetch
	}
	for _, r := range []image.Registry{{CA: ca}, {CA: ca, Certificate: ca, Key: ca}} {
		pull, fetch := get(r)
		for _, err := range []error{pull, fetch} {
			fails(t, err, map[bool]fault.Code{true: fault.Denied, false: fault.Internal}[r.Key == ""], "certificate", "with key "+r.Key)
		}
	}
	pull, fetch := get(image.Registry{CA: ca, Certificate: ca, Key: key})
	expect.OK(t, errors.Join(pull, fetch))
}
