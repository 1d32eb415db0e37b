package identity

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"
)

// FuzzServiceRetryAfter: however long an identity service wants to be left alone,
// it is no longer than a day, and never less than nothing.
func FuzzServiceRetryAfter(f *testing.F) {
	noon := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	s := &Service{now: func() time.Time { return noon }}
	for _, value := range []string{"", "0", "120", "-1", "99999999999999999999", "Fri, 01 May 2026 12:00:30 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "soon"} {
		f.Add(value, "")
		f.Add(value, "Thu, 01 Jan 1970 00:00:00 GMT")
	}
	f.Fuzz(func(t *testing.T, value, date string) {
		if got := s.retryAfter(value, date); got < 0 || got > maxRetryAfter {
			t.Fatalf("Retry-After %q with Date %q: %s", value, date, got)
		}
	})
}

// FuzzServiceETag: an ETag that is kept can be sent, and matches not everything.
func FuzzServiceETag(f *testing.F) {
	for _, seed := range []string{"", "*", " *\t", `"a"`, `W/"a"`, "\"\x00\"", "a\r\nX: y", "\x7f", "\xff", strings.Repeat("x", maxETag+1)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, etag string) {
		if !usableETag(etag) {
			return
		}
		r, err := http.NewRequest(http.MethodGet, "https://mis.example/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("If-None-Match", etag)
		var b bytes.Buffer
		if err := r.Write(&b); err != nil || strings.TrimSpace(etag) == "*" || !strings.Contains(b.String(), "If-None-Match: "+strings.Trim(etag, " \t")+"\r\n") {
			t.Fatalf("%q is sent as %q, %v", etag, b.String(), err)
		}
	})
}

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
		if (err == nil) != (key != nil) || key != nil && key.Public() == nil {
			t.Fatalf("%v with %v", key, err)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Fatalf("an error of %d bytes", len(err.Error()))
		}
	})
}
