package registry_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/registry"
)

func start(t *testing.T, o registry.Options) *registry.Registry {
	t.Helper()
	r, err := registry.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// get asks for a path of the registry; the header is given in pairs.
func get(t *testing.T, client *http.Client, url string, header ...string) (int, http.Header, []byte, error) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, answer.Header, body, err
}

func component(t *testing.T) *ociimage.Artifact {
	t.Helper()
	a, err := ociimage.Component{
		Name: "app", Version: "1.0.0", Files: ociimage.Files{"compose.yaml": []byte("services: {}")},
	}.Build()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func image(t *testing.T) (artifact *ociimage.Artifact, layer digest.Digest, content []byte) {
	t.Helper()
	artifact, err := ociimage.Build(ociimage.Image{Layers: []ociimage.Layer{ociimage.Padding(100_000)}})
	if err != nil {
		t.Fatal(err)
	}
	for d, blob := range artifact.Blobs {
		if len(blob) > len(content) {
			layer, content = d, blob
		}
	}
	return artifact, layer, content
}

func TestWhatIsPushedIsPulled(t *testing.T) {
	r := start(t, registry.Options{})
	want := component(t)
	to := ociimage.Registry{URL: r.URL()}
	if err := to.Push(context.Background(), "compose/app", "1.0.0", want); err != nil {
		t.Fatal(err)
	}
	for _, reference := range []string{"1.0.0", want.Digest.String()} {
		status, header, body, err := get(t, http.DefaultClient, r.URL()+"/v2/compose/app/manifests/"+reference)
		if err != nil || status != http.StatusOK || !bytes.Equal(body, want.Manifest) {
			t.Errorf("%s: got %d, %s, %v", reference, status, body, err)
		}
		if header.Get("Content-Type") != want.MediaType || header.Get("Docker-Content-Digest") != want.Digest.String() {
			t.Errorf("%s: header %v", reference, header)
		}
	}
	for d, blob := range want.Blobs {
		_, _, body, err := get(t, http.DefaultClient, r.URL()+"/v2/compose/app/blobs/"+d.String())
		if err != nil || !bytes.Equal(body, blob) {
			t.Errorf("blob %s: got %d bytes, %v", d, len(body), err)
		}
	}
	// Pushed again, only the manifest travels.
	uploads := r.Requests().Count(registry.EndpointUpload)
	if err := to.Push(context.Background(), "compose/app", "1.0.1", want); err != nil {
		t.Fatal(err)
	}
	if more := r.Requests().Count(registry.EndpointUpload) - uploads; more != 0 {
		t.Errorf("%d uploads of blobs that are there", more)
	}
}

func TestAnIndexIsPushedWithItsImages(t *testing.T) {
	r := start(t, registry.Options{})
	a, _, _ := image(t)
	index, err := ociimage.Index(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := (ociimage.Registry{URL: r.URL()}).Push(context.Background(), "x", "latest", index); err != nil {
		t.Fatal(err)
	}
	for _, d := range []digest.Digest{index.Digest, a.Digest} {
		if status, _, _, err := get(t, http.DefaultClient, r.URL()+"/v2/x/manifests/"+d.String()); status != http.StatusOK {
			t.Errorf("%s: %d, %v", d, status, err)
		}
	}
}

func TestABlobIsServedInParts(t *testing.T) {
	for _, kept := range []string{"in memory", "on disk"} {
		t.Run(kept, func(t *testing.T) {
			o := registry.Options{}
			if kept == "on disk" {
				o.Dir = t.TempDir()
			}
			r := start(t, o)
			a, d, content := image(t)
			if err := (ociimage.Registry{URL: r.URL()}).Push(context.Background(), "a/b", "1", a); err != nil {
				t.Fatal(err)
			}
			url, size := r.URL()+"/v2/a/b/blobs/"+d.String(), len(content)
			for _, c := range []struct {
				asked    string
				status   int
				from, to int
			}{
				{"", 200, 0, size},
				{"bytes=0-", 206, 0, size},
				{"bytes=5000-", 206, 5000, size},
				{"bytes=5000-5009", 206, 5000, 5010},
				{"bytes=-10", 206, size - 10, size},
				{fmt.Sprintf("bytes=%d-", size), 416, 0, 0},
			} {
				status, header, body, err := get(t, http.DefaultClient, url, "Range", c.asked)
				if err != nil || status != c.status {
					t.Errorf("%q: got %d, %v", c.asked, status, err)
					continue
				}
				if status != 416 && !bytes.Equal(body, content[c.from:c.to]) {
					t.Errorf("%q: got %d other bytes", c.asked, len(body))
				}
				want := fmt.Sprintf("bytes %d-%d/%d", c.from, c.to-1, size)
				if status == 206 && header.Get("Content-Range") != want {
					t.Errorf("%q: Content-Range %q, want %q", c.asked, header.Get("Content-Range"), want)
				}
			}
		})
	}
}

func TestABrokenDownloadIsContinued(t *testing.T) {
	r := start(t, registry.Options{})
	a, d, content := image(t)
	if err := (ociimage.Registry{URL: r.URL()}).Push(context.Background(), "x", "1", a); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Faults().Inject(fault.Fault{Endpoint: registry.EndpointBlob, Match: d.String(), Kind: fault.Cut, Bytes: 30_000, Times: 2}); err != nil {
		t.Fatal(err)
	}
	var have []byte
	for range 3 {
		_, _, part, err := get(t, http.DefaultClient, r.URL()+"/v2/x/blobs/"+d.String(), "Range", fmt.Sprintf("bytes=%d-", len(have)))
		have = append(have, part...)
		if err == nil {
			break
		}
	}
	if !bytes.Equal(have, content) {
		t.Errorf("got %d bytes of %d", len(have), len(content))
	}
	requests := r.Requests().Requests()
	if last := requests[len(requests)-1]; last.Header["Range"] != "bytes=60000-" || last.Status != 206 {
		t.Errorf("last request %+v", last)
	}
}

func TestARegistryFailsOnDemand(t *testing.T) {
	r := start(t, registry.Options{})
	a := component(t)
	if err := (ociimage.Registry{URL: r.URL()}).Push(context.Background(), "x", "1", a); err != nil {
		t.Fatal(err)
	}
	for status, code := range map[int]string{401: "UNAUTHORIZED", 404: "NAME_UNKNOWN", 429: "TOOMANYREQUESTS", 500: "UNKNOWN"} {
		f := fault.Fault{Endpoint: registry.EndpointManifest, Kind: fault.Answer, Status: status, RetryAfter: "3", Times: 1}
		if _, err := r.Faults().Inject(f); err != nil {
			t.Fatal(err)
		}
		got, header, body, err := get(t, http.DefaultClient, r.URL()+"/v2/x/manifests/1")
		if err != nil || got != status || !strings.Contains(string(body), code) || header.Get("Retry-After") != "3" {
			t.Errorf("%d: got %d, %s, %v", status, got, body, err)
		}
	}
}

func TestContentSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	first := start(t, registry.Options{Dir: dir})
	older, _, content := image(t)
	newer := component(t)
	index, err := ociimage.Index(older)
	if err != nil {
		t.Fatal(err)
	}
	to := ociimage.Registry{URL: first.URL()}
	for _, push := range []struct {
		tag string
		a   *ociimage.Artifact
	}{{"moved", older}, {"moved", newer}, {"index", index}} {
		if err := to.Push(context.Background(), "x", push.tag, push.a); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}

	second, err := registry.New(registry.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := second.Start(first.Address()); err != nil {
		t.Fatal(err)
	}
	for reference, want := range map[string]*ociimage.Artifact{
		"moved": newer, "index": index, older.Digest.String(): older, newer.Digest.String(): newer,
	} {
		_, _, body, err := get(t, http.DefaultClient, second.URL()+"/v2/x/manifests/"+reference)
		if err != nil || !bytes.Equal(body, want.Manifest) {
			t.Errorf("%s: got %s, %v", reference, body, err)
		}
	}
	_, _, body, err := get(t, http.DefaultClient, second.URL()+"/v2/x/blobs/"+digest.FromBytes(content).String())
	if err != nil || !bytes.Equal(body, content) {
		t.Errorf("blob: got %d bytes, %v", len(body), err)
	}
}

func TestOnlyKnownUsersArePermitted(t *testing.T) {
	for _, auth := range []registry.Auth{registry.Basic, registry.Bearer} {
		t.Run(string(auth), func(t *testing.T) {
			r := start(t, registry.Options{Auth: auth, User: "device", Password: "secret"})
			a := component(t)
			if err := (ociimage.Registry{URL: r.URL()}).Push(context.Background(), "x", "1", a); err == nil {
				t.Error("somebody unknown pushed")
			}
			if err := (ociimage.Registry{URL: r.URL(), User: "device", Password: "secret"}).Push(context.Background(), "x", "1", a); err != nil {
				t.Fatal(err)
			}
			url := r.URL() + "/v2/x/manifests/1"
			status, header, _, err := get(t, http.DefaultClient, url)
			challenge := header.Get("WWW-Authenticate")
			if err != nil || status != http.StatusUnauthorized || !strings.HasPrefix(strings.ToLower(challenge), string(auth)+" realm=") {
				t.Fatalf("got %d, %q, %v", status, challenge, err)
			}
			credentials := "Basic ZGV2aWNlOnNlY3JldA=="
			if auth == registry.Bearer {
				if !strings.Contains(challenge, `scope="repository:x:pull"`) {
					t.Errorf("challenge %s", challenge)
				}
				if status, _, _, _ := get(t, http.DefaultClient, r.URL()+"/token"); status != http.StatusUnauthorized {
					t.Errorf("a token for nobody: %d", status)
				}
				_, _, body, err := get(t, http.DefaultClient, r.URL()+"/token", "Authorization", credentials)
				var token struct{ Token string }
				if err != nil || json.Unmarshal(body, &token) != nil {
					t.Fatalf("token: %s, %v", body, err)
				}
				credentials = "Bearer " + token.Token
			}
			if status, _, _, err := get(t, http.DefaultClient, url, "Authorization", credentials); status != http.StatusOK {
				t.Errorf("with credentials: %d, %v", status, err)
			}
			if status, _, _, _ := get(t, http.DefaultClient, url, "Authorization", credentials+"x"); status != http.StatusUnauthorized {
				t.Errorf("with wrong credentials: %d", status)
			}
		})
	}
}

func TestItSpeaksTLSToo(t *testing.T) {
	example := httptest.NewUnstartedServer(nil)
	example.StartTLS() // for its certificate alone
	defer example.Close()
	r := start(t, registry.Options{TLS: &tls.Config{Certificates: example.TLS.Certificates}})
	to := ociimage.Registry{URL: r.URL(), Client: example.Client()}
	if err := to.Push(context.Background(), "x", "1", component(t)); err != nil {
		t.Error(err)
	}
}
