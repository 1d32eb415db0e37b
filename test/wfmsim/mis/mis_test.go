package mis_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/mis"
)

type rig struct {
	t         *testing.T
	server    *mis.Server
	authority *pki.Authority
	client    *http.Client
}

func start(t *testing.T) *rig {
	t.Helper()
	authority, err := pki.NewAuthority("plant.example", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ordinary, err := pki.NewServerAuthority("Public", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{"localhost", "127.0.0.1"}
	certificate, err := ordinary.IssueServer(hosts)
	if err != nil {
		t.Fatal(err)
	}
	server, err := mis.New(mis.Options{
		TrustDomain: "plant.example", Bundle: authority.Bundle(), Certificate: certificate.TLS(),
		Flaws: ordinary.Flaws(), Flawed: func(flaw string) (tls.Certificate, error) { return ordinary.IssueFlawed(hosts, flaw) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ordinary.Pool()}, DisableKeepAlives: true}
	return &rig{t, server, authority, &http.Client{Transport: transport, Timeout: 2 * time.Minute}}
}

func (r *rig) get(url string, header ...string) (*http.Response, []byte) {
	r.t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	answer, err := r.client.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer, body
}

func (r *rig) inject(f fault.Fault) {
	r.t.Helper()
	r.server.Faults().Clear("")
	if _, err := r.server.Faults().Inject(f); err != nil {
		r.t.Fatal(err)
	}
}

func TestWhatIsNotThereIsAProblem(t *testing.T) {
	r := start(t)
	r.server.SetBundle(nil)
	answer, body := r.get(r.server.BundleURL())
	p := margo.ParseProblem(answer.Header.Get("Content-Type"), answer.StatusCode, body)
	if p.Status != 404 || p.Kind() != margo.ProblemSPIFFEBundleNotFound || !p.Retryable || p.RetryAfterSeconds != 30 || p.Backoff != margo.BackoffExponential {
		t.Errorf("got %s", body)
	}
	r.inject(fault.Fault{Endpoint: mis.EndpointDiscovery, Kind: fault.Answer, Status: 404})
	answer, body = r.get(r.server.DiscoveryURL())
	if p := margo.ParseProblem(answer.Header.Get("Content-Type"), answer.StatusCode, body); p.Kind() != margo.ProblemDiscoveryDocumentNotFound || p.Retryable {
		t.Errorf("got %s", body)
	}
	if answer, _ := r.get("https://" + r.server.Address() + "/else"); answer.StatusCode != 404 {
		t.Errorf("got %s", answer.Status)
	}
}

func TestTwists(t *testing.T) {
	r := start(t)
	for twist, has := range map[string]string{
		mis.HTTPURI: `"http://`, mis.OtherURI: `"https://else.example/b"`, mis.NoURI: `{"trustDomain"`,
		mis.WrongDomain: `"other.plant.example"`, mis.NotJSON: "trustDomain: ", mis.Extra: "futureMember",
	} {
		r.inject(fault.Fault{Endpoint: mis.EndpointDiscovery, Kind: fault.Twist, What: twist, Value: "https://else.example/b"})
		if _, body := r.get(r.server.DiscoveryURL()); !strings.Contains(string(body), has) {
			t.Errorf("%s: got %s", twist, body)
		}
	}
	for twist, acceptable := range map[string]bool{
		mis.EmptyBundle: false, mis.JWTOnly: false, mis.BadKey: false, mis.NotJSON: false, mis.HugeBundle: false,
		mis.Extra: true, mis.LowerSequence: true,
	} {
		r.inject(fault.Fault{Endpoint: mis.EndpointBundle, Kind: fault.Twist, What: twist, Bytes: 2 << 20})
		_, body := r.get(r.server.BundleURL())
		if _, err := identity.ParseTrustBundle(body); (err == nil) != acceptable {
			t.Errorf("%s: %v", twist, err)
		}
	}
}
