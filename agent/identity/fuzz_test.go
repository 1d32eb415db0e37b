package identity

import (
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// kept is a Keeper with a record that anything may have happened to.
type kept []byte

func (k kept) Keep([]byte) error     { return nil }
func (k kept) Kept() ([]byte, error) { return k, nil }

// FuzzKeptBundle starts with a record of the trust bundle: what comes of it has
// an anchor, or there is none (ID-19, ID-28).
func FuzzKeptBundle(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `[]`, `{"trustDomain":"a","bundle":""}`, `{"trustDomain":"a","bundle":"e30="}`, `{"bundle":1}`, `{"accepted":"9999-99-99"}`,
		`{"trustDomain":"a","url":"https://b","etag":"*","accepted":"2026-05-01T12:00:00Z","bundle":"eyJrZXlzIjpbXX0="}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, record []byte) {
		s := NewBundleSource(BundleOptions{Keeper: kept(record), Logger: slog.New(slog.DiscardHandler)})
		if _, bundle := s.Current(); bundle != nil && len(bundle.Anchors) == 0 {
			t.Fatal("a bundle without an anchor")
		}
		if _, err := json.Marshal(s.Status().Accepted); s.Status().Anchors > 0 && err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzParseKey reads private keys, of which nothing may be in an error.
func FuzzParseKey(f *testing.F) {
	for _, kind := range []string{"PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "EC PARAMETERS"} {
		f.Add(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte{0x30, 3, 2, 1, 0}}))
	}
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		key, err := parseKey(data)
		expect.Require(t, (err == nil) == (key != nil) && (key == nil || key.Public() != nil), "%v with %v", key, err)
		if err != nil && len(err.Error()) > 300 {
			t.Fatalf("an error of %d bytes", len(err.Error()))
		}
	})
}
