package runtime_test

import (
	"bytes"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/openpgp"
)

// packages serves packages, signatures and keys by HTTPS, to who knows the password.
type packages struct {
	url, host, ca string

	mu    sync.Mutex
	files map[string][]byte // by path
	asked []string          // paths, with their queries
}

const packagesPassword = "ZGV2aWNlOmh1bnRlcjI=" // device:hunter2

func newPackages(t *testing.T) *packages {
	t.Helper()
	s := &packages{}
	server := httptest.NewUnstartedServer(s)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	s.url, s.host = server.URL, strings.TrimPrefix(server.URL, "https://")
	s.ca = filepath.Join(t.TempDir(), "ca.pem")
	writeFile(t, s.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	return s
}

func (s *packages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, strings.TrimPrefix(r.URL.RequestURI(), "/"))
	data, ok := s.files[r.URL.EscapedPath()]
	s.mu.Unlock()
	switch user, password, _ := r.BasicAuth(); {
	case user != "device" || password != "hunter2":
		w.WriteHeader(http.StatusUnauthorized)
	case !ok:
		w.WriteHeader(http.StatusNotFound)
	case bytes.HasPrefix(data, []byte("status ")):
		w.WriteHeader(map[string]int{"403": 403, "503": 503}[string(data[7:])])
	case bytes.HasPrefix(data, []byte("see ")):
		http.Redirect(w, r, string(data[4:]), http.StatusFound)
	default:
		_, _ = w.Write(data)
	}
}

// serve replaces what there is, and forgets what it was asked for.
func (s *packages) serve(files map[string][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files, s.asked = files, nil
}

func (s *packages) wasAsked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.asked, " ")
}

// engine is one that downloads packages only: it has no containerd.
func (s *packages) engine(t *testing.T, keys ...string) *runtime.Engine {
	t.Helper()
	credentials := filepath.Join(t.TempDir(), "config.json")
	writeFile(t, credentials, []byte(`{"auths":{"`+s.host+`":{"auth":"`+packagesPassword+`"}}}`))
	client, err := containerd.Open("/nowhere", "margo.test")
	must(t, err)
	t.Cleanup(func() { client.Close() })
	e, err := runtime.New(runtime.Options{
		Client: client, Namespace: "margo.test", StateDir: t.TempDir(), RunDir: t.TempDir(),
		Registries: map[string]image.Registry{s.host: {CA: s.ca, Credentials: credentials}},
		Keys:       keys, Logger: containerdtest.Logger(t),
	})
	must(t, err)
	t.Cleanup(e.Close)
	return e
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	must(t, os.WriteFile(path, data, 0o600))
}

func TestPKG15SignedPackages(t *testing.T) {
	g := openpgp.New(t)
	good := g.Key("good", "ed25519", "never")
	data := []byte("services: {a: {image: app}}")
	key, signature := g.Public([]string{good}, "--armor"), g.Sign(good, data, "--armor")
	s := newPackages(t)
	e := s.engine(t)
	for name, c := range map[string]struct {
		files map[string][]byte
		path  string // of the package; "": /p.tgz
		want  runtime.Code
		says  string
		asked string
	}{
		"the signature is in .asc": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": data, "/p.tgz.asc": signature},
			asked: "key.asc p.tgz.asc p.tgz",
		},
		"the signature is in .sig": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": data, "/p.tgz.sig": g.Sign(good, data)},
			asked: "key.asc p.tgz.asc p.tgz.sig p.tgz",
		},
		"the server hides what it does not have": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": data, "/p.tgz.asc": []byte("status 403"), "/p.tgz.sig": signature},
		},
		"the URL has a query and an escape": {
			files: map[string][]byte{"/key.asc": key, "/a%2Fb%20c": data, "/a%2Fb%20c.asc": signature},
			path:  "/a%2Fb%20c?token=secret",
			asked: "key.asc a%2Fb%20c.asc?token=secret a%2Fb%20c?token=secret",
		},
		"all have moved": {files: map[string][]byte{
			"/key.asc": []byte("see /k"), "/k": key, "/p.tgz": []byte("see /d"), "/d": data, "/p.tgz.asc": []byte("see /s"), "/s": signature,
		}},
		"the package is another": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": append([]byte("#\n"), data...), "/p.tgz.asc": signature},
			want:  runtime.InvalidPackage, says: "for other data",
		},
		"a bad .asc hides a good .sig": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": data, "/p.tgz.asc": []byte("none"), "/p.tgz.sig": signature},
			want:  runtime.InvalidPackage, says: "p.tgz.asc: not a detached OpenPGP signature", asked: "key.asc p.tgz.asc",
		},
		"the key is none": {
			files: map[string][]byte{"/key.asc": []byte("none"), "/p.tgz": data, "/p.tgz.asc": signature},
			want:  runtime.InvalidPackage, says: "key.asc: not OpenPGP public keys", asked: "key.asc",
		},
		"the signature is huge": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": data, "/p.tgz.asc": make([]byte, 64<<10+1)},
			want:  runtime.InvalidPackage, says: "p.tgz.asc: it has more than 65536 bytes",
		},
		"the key is huge": {
			files: map[string][]byte{"/key.asc": make([]byte, 256<<10+1), "/p.tgz": data, "/p.tgz.asc": signature},
			want:  runtime.InvalidPackage, says: "key.asc: it has more than 262144 bytes",
		},
		"there is no signature": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": data},
			want:  runtime.NotFound, says: "must be signed", asked: "key.asc p.tgz.asc p.tgz.sig",
		},
		"there is no key": {
			files: map[string][]byte{"/p.tgz": data, "/p.tgz.asc": signature},
			want:  runtime.NotFound, says: "key.asc: server answered 404",
		},
		"the signature is not to be had now": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": data, "/p.tgz.asc": []byte("status 503"), "/p.tgz.sig": signature},
			want:  runtime.Unreachable, says: "p.tgz.asc: server answered 503",
		},
		"the key is not to be had now": {
			files: map[string][]byte{"/key.asc": []byte("status 503"), "/p.tgz": data, "/p.tgz.asc": signature},
			want:  runtime.Unreachable, says: "key.asc: server answered 503",
		},
		"nobody may have the signature": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": data, "/p.tgz.asc": []byte("status 403")},
			want:  runtime.Denied, says: "must be signed",
		},
		"the key has moved to plain HTTP": {
			files: map[string][]byte{"/key.asc": []byte("see http://elsewhere.invalid/key?token=secret"), "/p.tgz": data, "/p.tgz.asc": signature},
			want:  runtime.Refused, says: "plain HTTP",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s.serve(c.files)
			if c.path == "" {
				c.path = "/p.tgz"
			}
			p, err := e.FetchPackage(t.Context(), runtime.PackageRef{Location: s.url + c.path, Key: s.url + "/key.asc"}, nil)
			switch {
			case c.want == "" && (err != nil || !bytes.Equal(p.Data, data) || p.Digest != digest.FromBytes(data)):
				t.Errorf("%+v, %v", p, err)
			case c.want != "" && (p != nil || runtime.CodeOf(err) != c.want || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret")):
				t.Errorf("%+v, %v of code %s; want %s, %q", p, err, runtime.CodeOf(err), c.want, c.says)
			}
			if asked := s.wasAsked(); c.asked != "" && asked != c.asked {
				t.Errorf("the server was asked for %q, want %q", asked, c.asked)
			}
		})
	}
}

// Keys that the device trusts count instead of those that a document names, and
// for packages of which it names none as well.
func TestPKG15TrustedKeys(t *testing.T) {
	g := openpgp.New(t)
	trusted, second, other := g.Key("trusted", "ed25519", "never"), g.Key("second", "ed25519", "never"), g.Key("other", "ed25519", "never")
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "one.asc"), filepath.Join(dir, "two.pgp")}
	writeFile(t, files[0], g.Public([]string{trusted}, "--armor"))
	writeFile(t, files[1], g.Public([]string{second}))
	s := newPackages(t)
	e := s.engine(t, files...)
	data := []byte("services: {a: {image: app}}")
	for name, c := range map[string]struct {
		signature []byte
		key       string
		want      runtime.Code
	}{
		"a document without a key":           {signature: g.Sign(trusted, data)},
		"a document with a key of its own":   {signature: g.Sign(second, data), key: s.url + "/key.asc"},
		"the key of the document alone":      {signature: g.Sign(other, data), key: s.url + "/key.asc", want: runtime.InvalidPackage},
		"a package without any signature":    {want: runtime.NotFound},
		"another key, and none is mentioned": {signature: g.Sign(other, data), want: runtime.InvalidPackage},
	} {
		t.Run(name, func(t *testing.T) {
			served := map[string][]byte{"/p.tgz": data, "/key.asc": g.Public([]string{other})}
			if c.signature != nil {
				served["/p.tgz.asc"] = c.signature
			}
			s.serve(served)
			p, err := e.FetchPackage(t.Context(), runtime.PackageRef{Location: s.url + "/p.tgz", Key: c.key}, nil)
			if runtime.CodeOf(err) != c.want && err != nil || (p != nil) != (c.want == "") {
				t.Errorf("%+v, %v; want %q", p, err, c.want)
			}
			if asked := s.wasAsked(); strings.Contains(asked, "key.asc") {
				t.Errorf("the server was asked for %q", asked)
			}
		})
	}

	s.serve(map[string][]byte{"/p.tgz": data, "/p.tgz.asc": g.Sign(trusted, data)})
	writeFile(t, files[1], []byte("no key"))
	_, err := e.FetchPackage(t.Context(), runtime.PackageRef{Location: s.url + "/p.tgz"}, nil)
	if runtime.CodeOf(err) != runtime.Internal || !strings.Contains(err.Error(), "two.pgp") {
		t.Errorf("a file that holds no keys: %v of code %s", err, runtime.CodeOf(err))
	}
}

func TestPKG15PackagesAreNotBelievedWithoutGPGV(t *testing.T) {
	s := newPackages(t)
	s.serve(map[string][]byte{"/p.tgz": []byte("services: {}")})
	t.Setenv("PATH", t.TempDir())
	e := s.engine(t)
	p, err := e.FetchPackage(t.Context(), runtime.PackageRef{Location: s.url + "/p.tgz", Key: s.url + "/key.asc"}, nil)
	if p != nil || runtime.CodeOf(err) != runtime.Internal || !strings.Contains(err.Error(), "gpgv is not in PATH") || s.wasAsked() != "" {
		t.Errorf("%+v, %v of code %s", p, err, runtime.CodeOf(err))
	}
	if _, err := e.FetchPackage(t.Context(), runtime.PackageRef{Location: s.url + "/p.tgz"}, nil); err != nil {
		t.Errorf("without a key: %v", err)
	}
}
