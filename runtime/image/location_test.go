package image_test

import (
	"bytes"
	"cmp"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/openpgp"
)

// packages serves packages, signatures and keys by HTTPS, to whoever knows the password.
type packages struct {
	url, host, ca string

	mu    sync.Mutex
	files map[string][]byte // by path
	asked []string          // paths, with their queries
}

func newPackages(t *testing.T) *packages {
	t.Helper()
	s := &packages{}
	s.host, s.ca = secured(t, s)
	s.url = "https://" + s.host
	return s
}

func (s *packages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, strings.TrimPrefix(r.URL.RequestURI(), "/"))
	data, ok := s.files[r.URL.EscapedPath()]
	s.mu.Unlock()
	how, where, _ := strings.Cut(string(data), " ")
	switch user, password, _ := r.BasicAuth(); {
	case user != "device" || password != "hunter2":
		w.WriteHeader(http.StatusUnauthorized)
	case !ok:
		w.WriteHeader(http.StatusNotFound)
	case how == "status":
		w.WriteHeader(map[string]int{"403": 403, "502": 502, "503": 503}[where])
	case how == "see":
		http.Redirect(w, r, where, http.StatusFound)
	case how == "portal":
		portal(w, r)
	case how == "endless":
		w.(http.Flusher).Flush()
		for err := error(nil); err == nil; {
			_, err = io.WriteString(w, strings.Repeat("x", 4096))
		}
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

// images are a device that knows the password, and trusts files of keys.
func (s *packages) images(t *testing.T, keys ...string) *image.Images {
	t.Helper()
	return openWith(t, image.Options{Keys: keys, Registries: map[string]image.Registry{
		s.host: {CA: s.ca, Credentials: writeFile(t, "config.json", []byte(`{"auths":{"`+s.host+`":`+basic("device", "hunter2")+`}}`))},
	}})
}

func locate(t *testing.T, images *image.Images, from image.Source) ([]byte, error) {
	t.Helper()
	return images.Location(t.Context(), from, image.ArtifactLimits{Size: 1 << 20}, nil)
}

func writeFile(t testing.TB, name string, data []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	expect.Check(t, os.WriteFile(path, data, 0o600))
	return path
}

func TestPKG15LocationDownloadsAPackage(t *testing.T) {
	s := newPackages(t)
	s.serve(map[string][]byte{
		"/package.tgz": []byte(packageBytes), "/endless": []byte("endless "), "/portal": []byte("portal "),
		"/moved": []byte("see /package.tgz"), "/circle": []byte("see /circle"), "/away": []byte("see http://registry.invalid/package.tgz"),
		"/denied": []byte("status 403"), "/broken": []byte("status 502"),
	})
	images := s.images(t)
	for name, test := range map[string]struct {
		location string
		want     fault.Code
	}{
		"it is there":                {s.url + "/package.tgz", ""},
		"it has moved":               {s.url + "/moved", ""},
		"it is not there":            {s.url + "/nothing", fault.NotFound},
		"it does not end":            {s.url + "/endless", fault.InvalidPackage},
		"a portal answers":           {s.url + "/portal", fault.Unreachable},
		"it moves in a circle":       {s.url + "/circle", fault.Unreachable},
		"it has moved to plain HTTP": {s.url + "/away?token=secret", fault.Refused},
		"nobody may have it":         {s.url + "/denied", fault.Denied},
		"the server is broken":       {s.url + "/broken", fault.Unreachable},
		"the server is silent":       {"https://" + unusedAddress(t) + "/package.tgz", fault.Unreachable},
		"plain HTTP elsewhere":       {"http://registry.invalid/package.tgz", fault.Refused},
		"a file":                     {"file:///etc/passwd", fault.InvalidPackage},
		"no URL":                     {"::", fault.InvalidPackage},
		"a password in the URL":      {"https://user:secret@registry.invalid/", fault.InvalidPackage},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := locate(t, images, image.Source{Package: test.location})
			fails(t, err, test.want, "", test.location)
			if err == nil {
				expect.Equal(t, string(data), packageBytes, "package")
			}
		})
	}
}

func TestPKG15SignedPackages(t *testing.T) {
	g := openpgp.New(t)
	good := g.Key("good", "ed25519", "never")
	data := []byte("services: {a: {image: app}}")
	key, signature := g.Public([]string{good}, "--armor"), g.Sign(good, data, "--armor")
	s := newPackages(t)
	images := s.images(t)
	for name, c := range map[string]struct {
		files map[string][]byte
		path  string // of the package; "": /p.tgz
		want  fault.Code
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
			want:  fault.InvalidPackage, says: "for other data",
		},
		"a bad .asc hides a good .sig": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": data, "/p.tgz.asc": []byte("none"), "/p.tgz.sig": signature},
			want:  fault.InvalidPackage, says: "p.tgz.asc: not a detached OpenPGP signature", asked: "key.asc p.tgz.asc",
		},
		"the key is none": {
			files: map[string][]byte{"/key.asc": []byte("none"), "/p.tgz": data, "/p.tgz.asc": signature},
			want:  fault.InvalidPackage, says: "key.asc: not OpenPGP public keys", asked: "key.asc",
		},
		"the signature is huge": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": data, "/p.tgz.asc": make([]byte, 64<<10+1)},
			want:  fault.InvalidPackage, says: "p.tgz.asc: it has more than 65536 bytes",
		},
		"the key is huge": {
			files: map[string][]byte{"/key.asc": make([]byte, 256<<10+1), "/p.tgz": data, "/p.tgz.asc": signature},
			want:  fault.InvalidPackage, says: "key.asc: it has more than 262144 bytes",
		},
		"there is no signature": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": data},
			want:  fault.NotFound, says: "must be signed", asked: "key.asc p.tgz.asc p.tgz.sig",
		},
		"there is no key": {
			files: map[string][]byte{"/p.tgz": data, "/p.tgz.asc": signature},
			want:  fault.NotFound, says: "key.asc: server answered 404",
		},
		"the signature is not to be had now": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": data, "/p.tgz.asc": []byte("status 503"), "/p.tgz.sig": signature},
			want:  fault.Unreachable, says: "p.tgz.asc: server answered 503",
		},
		"the key is not to be had now": {
			files: map[string][]byte{"/key.asc": []byte("status 503"), "/p.tgz": data, "/p.tgz.asc": signature},
			want:  fault.Unreachable, says: "key.asc: server answered 503",
		},
		"nobody may have the signature": {
			files: map[string][]byte{"/key.asc": key, "/p.tgz": data, "/p.tgz.asc": []byte("status 403")},
			want:  fault.Denied, says: "must be signed",
		},
		"the key has moved to plain HTTP": {
			files: map[string][]byte{"/key.asc": []byte("see http://elsewhere.invalid/key?token=secret"), "/p.tgz": data, "/p.tgz.asc": signature},
			want:  fault.Refused, says: "plain HTTP",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s.serve(c.files)
			location := s.url + cmp.Or(c.path, "/p.tgz")
			got, err := locate(t, images, image.Source{Package: location, Keys: s.url + "/key.asc"})
			switch {
			case c.want == "" && (err != nil || !bytes.Equal(got, data)):
				t.Errorf("%q, %v", got, err)
			case c.want != "" && (got != nil || kind(err) != c.want || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret")):
				t.Errorf("%q, %v of kind %q; want %q, %q", got, err, kind(err), c.want, c.says)
			}
			expect.Equal(t, s.wasAsked(), cmp.Or(c.asked, s.wasAsked()), "requests")
		})
	}
}

// Keys that the device trusts count instead of those that a document names, and for packages of which it names none as well.
func TestPKG15TrustedKeys(t *testing.T) {
	g := openpgp.New(t)
	trusted, second, other := g.Key("trusted", "ed25519", "never"), g.Key("second", "ed25519", "never"), g.Key("other", "ed25519", "never")
	files := []string{
		writeFile(t, "one.asc", g.Public([]string{trusted}, "--armor")), writeFile(t, "two.pgp", g.Public([]string{second})),
	}
	s := newPackages(t)
	images := s.images(t, files...)
	data := []byte("services: {a: {image: app}}")
	for name, c := range map[string]struct {
		signature []byte
		key       string
		want      fault.Code
	}{
		"a document without a key":           {signature: g.Sign(trusted, data)},
		"a document with a key of its own":   {signature: g.Sign(second, data), key: s.url + "/key.asc"},
		"the key of the document alone":      {signature: g.Sign(other, data), key: s.url + "/key.asc", want: fault.InvalidPackage},
		"a package without any signature":    {want: fault.NotFound},
		"another key, and none is mentioned": {signature: g.Sign(other, data), want: fault.InvalidPackage},
	} {
		t.Run(name, func(t *testing.T) {
			served := map[string][]byte{"/p.tgz": data, "/key.asc": g.Public([]string{other})}
			if c.signature != nil {
				served["/p.tgz.asc"] = c.signature
			}
			s.serve(served)
			got, err := locate(t, images, image.Source{Package: s.url + "/p.tgz", Keys: c.key})
			expect.True(t, kind(err) == c.want && (got != nil) == (c.want == ""), "%q, %v; want %q", got, err, c.want)
			expect.Equal(t, strings.Contains(s.wasAsked(), "key.asc"), false, "the key of the document was asked for")
		})
	}

	s.serve(map[string][]byte{"/p.tgz": data, "/p.tgz.asc": g.Sign(trusted, data)})
	expect.Check(t, os.WriteFile(files[1], []byte("no key"), 0o600))
	_, err := locate(t, images, image.Source{Package: s.url + "/p.tgz"})
	fails(t, err, fault.Internal, "two.pgp", "a file that holds no keys")
}

func TestPKG15PackagesAreNotBelievedWithoutGPGV(t *testing.T) {
	s := newPackages(t)
	s.serve(map[string][]byte{"/p.tgz": []byte("services: {}")})
	t.Setenv("PATH", t.TempDir())
	for key, want := range map[string]fault.Code{"": "", s.url + "/key.asc": fault.Internal} {
		got, err := locate(t, s.images(t), image.Source{Package: s.url + "/p.tgz", Keys: key})
		if kind(err) != want || (got != nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), "gpgv is not in PATH")) {
			t.Errorf("with the key %q: %q, %v", key, got, err)
		}
	}
}
