package margo_test

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
)

// FuzzETag sends ETags back as they came: those that are kept arrive as they
// are, and none keeps a poll from being sent or matches everything.
func FuzzETag(f *testing.F) {
	for _, seed := range []string{"", "*", `"sha256:0"`, `W/"x"`, "unquoted", " *\t", "*\u0085", "*\u3000", `"a", "b"`, "\"\x00\"", "\"\x7f\"", "\"\xff\"", "a\r\nX: y", strings.Repeat("x", margo.MaxETag+1)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, etag string) {
		if !margo.UsableETag(etag) {
			return
		}
		if !httpguts.ValidHeaderFieldValue(etag) || strings.TrimSpace(etag) == "*" || len(etag) > margo.MaxETag {
			t.Fatalf("%q cannot be sent", etag)
		}
		r := expect.Value(http.NewRequest(http.MethodGet, "https://wfm.example/", nil))(t)
		r.Header.Set("If-None-Match", etag)
		var b bytes.Buffer
		check(t, r.Write(&b))
		received := expect.Value(http.ReadRequest(bufio.NewReader(&b)))(t)
		if got := received.Header.Values("If-None-Match"); len(got) != 1 || got[0] != strings.Trim(etag, " \t") {
			t.Fatalf("%q arrives as %q", etag, got)
		}
	})
}
