package identity_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/expect"
)

const clientID = "spiffe://factory.example/margo/wfm/one/client/gw-07"

func parseRequest(t *testing.T, csr []byte) *x509.CertificateRequest {
	t.Helper()
	block, rest := pem.Decode(csr)
	expect.Require(t, block != nil && block.Type == "CERTIFICATE REQUEST" && len(rest) == 0, "not a request: %s", csr)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = request.CheckSignature()
	}
	check(t, err)
	return request
}

func TestID02KeyIsMadeOnTheDevice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "device.key")
	id := expect.Value(identity.ParseSPIFFEID(clientID))(t)

	csr, created, err := identity.Request(file, identity.Subject{ID: id})
	expect.Require(t, err == nil && created, "created %v, %v", created, err)
	request := parseRequest(t, csr)
	t.Run("ID-02 the request names the client and nothing else", func(t *testing.T) {
		if len(request.URIs) != 1 || request.URIs[0].String() != clientID || request.Subject.String() != "" ||
			len(request.DNSNames)+len(request.EmailAddresses)+len(request.IPAddresses) > 0 {
			t.Errorf("the request is for %q, %v", request.Subject, request.URIs)
		}
	})
	t.Run("ID-25 the key is strong, and its owner's alone", func(t *testing.T) {
		public, ok := request.PublicKey.(*ecdsa.PublicKey)
		if !ok || public.Curve != elliptic.P256() {
			t.Errorf("the key is a %T", request.PublicKey)
		}
		expect.Equal(t, expect.Value(os.Stat(file))(t).Mode().Perm(), 0o600, "mode")
		expect.Equal(t, len(expect.Value(os.ReadDir(filepath.Dir(file)))(t)), 1, "files in the folder")
		expect.Equal(t, bytes.Contains(csr, []byte("PRIVATE")), false, "the request holds the key")
	})
	t.Run("ID-02 the key stays for the next request", func(t *testing.T) {
		before := expect.Value(os.ReadFile(file))(t)
		again, created, err := identity.Request(file, identity.Subject{Name: "gw-07"})
		expect.Require(t, err == nil && !created, "created %v, %v", created, err)
		next := parseRequest(t, again)
		if !next.PublicKey.(*ecdsa.PublicKey).Equal(request.PublicKey) || next.Subject.CommonName != "gw-07" || len(next.URIs) != 0 {
			t.Errorf("the request is for %q, %v", next.Subject, next.URIs)
		}
		expect.Equal(t, before, expect.Value(os.ReadFile(file))(t), "the key was written again")
	})
	t.Run("ID-25 two keys are never the same", func(t *testing.T) {
		other, _, err := identity.Request(filepath.Join(t.TempDir(), "k"), identity.Subject{ID: id})
		if err != nil || parseRequest(t, other).PublicKey.(*ecdsa.PublicKey).Equal(request.PublicKey) {
			t.Errorf("the same key twice, or %v", err)
		}
	})
}

// Whoever comes first makes the key, and everybody uses that one.
func TestID02KeyIsMadeOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "device.key")
	var all sync.WaitGroup
	requests := make([][]byte, 8)
	made := make([]bool, len(requests))
	for i := range requests {
		all.Go(func() {
			requests[i], made[i], _ = identity.Request(file, identity.Subject{Name: "gw"})
		})
	}
	all.Wait()
	makers := 0
	for i, csr := range requests {
		if !parseRequest(t, csr).PublicKey.(*ecdsa.PublicKey).Equal(parseRequest(t, requests[0]).PublicKey) {
			t.Error("two keys are in use")
		}
		if made[i] {
			makers++
		}
	}
	expect.Equal(t, makers, 1, "makers of the key")
}

func TestID25KeysThatAreNotUsed(t *testing.T) {
	dir := t.TempDir()
	weakPEM := encode("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsa2048().(*rsa.PrivateKey)))
	file := func(name string, content []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		check(t, errors.Join(os.WriteFile(path, content, 0o600), os.Chmod(path, mode)))
		return path
	}
	loop := filepath.Join(dir, "loop")
	check(t, os.Symlink("nowhere", loop))
	svid := identity.Subject{ID: expect.Value(identity.ParseSPIFFEID(clientID))(t)}
	for name, tt := range map[string]struct {
		file    string
		subject identity.Subject
		want    identity.Reason // empty: another kind of error
	}{
		"others can read it":               {file("exposed", weakPEM, 0o640), svid, identity.KeyExposed},
		"it leads nowhere":                 {loop, svid, identity.Missing},
		"it is too weak for an SVID":       {file("weak", weakPEM, 0o600), svid, identity.WeakKey},
		"its folder is missing":            {filepath.Join(dir, "no", "key"), svid, ""},
		"the SPIFFE ID is that of a WFM":   {filepath.Join(dir, "new"), identity.Subject{ID: svid.ID.Server()}, ""},
		"there is no name":                 {filepath.Join(dir, "new"), identity.Subject{}, ""},
		"there are two names":              {filepath.Join(dir, "new"), identity.Subject{ID: svid.ID, Name: "gw"}, ""},
		"the name is too long":             {filepath.Join(dir, "new"), identity.Subject{Name: strings.Repeat("x", 65)}, ""},
		"the name has more than one line":  {filepath.Join(dir, "new"), identity.Subject{Name: "a\nb"}, ""},
		"the name has blanks at its ends":  {filepath.Join(dir, "new"), identity.Subject{Name: " gw"}, ""},
		"the name is not written in ASCII": {filepath.Join(dir, "new"), identity.Subject{Name: "gerät"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			csr, created, err := identity.Request(tt.file, tt.subject)
			var fault *identity.Error
			if err == nil || created || csr != nil || errors.As(err, &fault) != (tt.want != "") || fault != nil && fault.Reason != tt.want {
				t.Errorf("created %v, %v, want %q", created, err, tt.want)
			}
		})
	}
	expect.Error(t, expect.ErrorOf(os.Stat(filepath.Join(dir, "new"))), os.ErrNotExist, "a key for a request that cannot be made")
	_, _, err := identity.Request(file("weak", weakPEM, 0o600), identity.Subject{Name: "gw"})
	expect.Error(t, err, nil, "RSA 2048 before rc.3")
}
