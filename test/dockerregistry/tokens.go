package dockerregistry

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Tokens is a token service that a registry trusts.
type Tokens struct {
	URL string
	// Knows says whether somebody may have what they ask for.
	Knows func(*http.Request) bool
	// NoPost makes it one that answers 404 to POST.
	NoPost bool

	key         *ecdsa.PrivateKey
	certificate []byte // DER
	file        string // of the certificate

	mu    sync.Mutex
	asked []string
}

// StartTokens runs a token service until the test ends. It has to be set up before it is used.
func StartTokens(t testing.TB) *Tokens {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tokens"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	s := &Tokens{key: key, certificate: certificate, file: filepath.Join(t.TempDir(), "tokens.pem")}
	if err := os.WriteFile(s.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o600); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// Config are the lines of a registry's configuration that make it want tokens of this service.
func (s *Tokens) Config() string {
	return "auth: {token: {realm: \"" + s.URL + "/token\", service: registry, issuer: tokens, rootcertbundle: " + s.file + "}}\n"
}

// Asked returns the methods and scopes of the requests since the last call.
func (s *Tokens) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

func (s *Tokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	scope := r.FormValue("scope")
	s.mu.Lock()
	s.asked = append(s.asked, r.Method+" "+scope)
	s.mu.Unlock()
	switch {
	case r.Method == http.MethodPost && s.NoPost:
		http.NotFound(w, r)
		return
	case !s.Knows(r):
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	token := s.Token(scope)
	name := "token"
	if r.Method == http.MethodPost {
		name = "access_token"
	}
	_ = json.NewEncoder(w).Encode(map[string]any{name: token, "expires_in": 300})
}

// Token is a token for a scope as "repository:group/app:pull,push".
func (s *Tokens) Token(scope string) string {
	now := time.Now()
	var access []any
	if parts := strings.Split(scope, ":"); len(parts) == 3 {
		access = append(access, map[string]any{"type": parts[0], "name": parts[1], "actions": strings.Split(parts[2], ",")})
	}
	return s.sign(map[string]any{
		"iss": "tokens", "aud": "registry", "sub": "somebody", "jti": rand.Text(),
		"iat": now.Unix(), "nbf": now.Unix() - 60, "exp": now.Unix() + 300, "access": access,
	})
}

// sign makes a JSON web token.
func (s *Tokens) sign(claims map[string]any) string {
	encode := func(v any) string {
		data, _ := json.Marshal(v)
		return base64.RawURLEncoding.EncodeToString(data)
	}
	header := map[string]any{"typ": "JWT", "alg": "ES256", "x5c": []string{base64.StdEncoding.EncodeToString(s.certificate)}}
	signed := encode(header) + "." + encode(claims)
	hash := sha256.Sum256([]byte(signed))
	r, v, _ := ecdsa.Sign(rand.Reader, s.key, hash[:])
	signature := append(r.FillBytes(make([]byte, 32)), v.FillBytes(make([]byte, 32))...)
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}
