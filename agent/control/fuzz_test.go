package control

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// FuzzDecode reads the bodies of requests: an invalid one is refused as such, and none
// can name the caller.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"version":1,"digest":"sha256:00"}`, `{"version":1,"digest":"a","uid":7,"UID":7}`, `{"version":-1}`, `{}{}`, `[]`, `{`, "",
		`{"project":"a","files":["/a"],"environment":{"A":"B"}}`, `{"project":"a","volumes":true}`, `{"command":["sh"],"tty":true}`,
		`{"deployment":"a","revision":"sha256:00","Caller":{"UID":7}}`, `{"holder":"a","seconds":9223372036854775808}`, `{"all":true,"UID":7}`,
		`{"version":18446744073709551616}`, `{"images":true}`, `{"a":{"b":{"c":[[[[]]]]}}}`, `null`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, into := range []any{&RollbackRequest{}, &ComposeRequest{}, &DownRequest{}, &ExecRequest{}, &[]Unneeded{}, &AnswerRequest{}, &HoldRequest{}, &ReleaseRequest{}, &ReturnRequest{}} {
			r, err := http.NewRequest(http.MethodPost, "http://margolite/", bytes.NewReader(body))
			expect.Check(t, err)
			if err := parseBody(r, into); err != nil && !errors.Is(err, ErrInvalid) {
				t.Fatalf("%T: %v", into, err)
			}
			was := fmt.Sprintf("%#v", into)
			if named, ok := into.(interface{ by(Caller) }); ok {
				named.by(Caller{})
			}
			expect.Require(t, fmt.Sprintf("%#v", into) == was, "%q says who asks", body)
		}
	})
}

// FuzzHistoryRequest reads the query of a request for the journal.
func FuzzHistoryRequest(f *testing.F) {
	for _, seed := range []string{"", "since=7&last=3&deployment=d", "since=-1", "last=4294967296", "last=1e3", "deployment=%00", "deployment=a;b", "%zz"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		req, err := historyRequest(&http.Request{URL: &url.URL{RawQuery: query}})
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Fatal(err)
		}
		if err != nil {
			return
		}
		if again, err := historyRequest(&http.Request{URL: &url.URL{RawQuery: req.query().Encode()}}); err != nil || again != req {
			t.Fatalf("%q was read as %+v, and that as %+v, %v", query, req, again, err)
		}
	})
}

// FuzzLogsRequest reads the query of a request for logs.
func FuzzLogsRequest(f *testing.F) {
	for _, seed := range []string{
		"", "deployment=a&service=b&service=c&follow=true&tail=10", "tail=-1", "tail=all", "tail=99999999999999999999", "prefix=x&color=true",
		"since=2026-05-01T12:00:00Z&until=0", "%zz", "a;b=c", "project=../..",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		req, err := logsRequest(&http.Request{URL: &url.URL{RawQuery: query}})
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Fatal(err)
		}
		if err == nil && req.Tail != nil && *req.Tail < 0 {
			t.Fatalf("%q: %d lines", query, *req.Tail)
		}
	})
}
