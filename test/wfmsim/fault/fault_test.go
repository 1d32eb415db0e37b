package fault_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

const (
	text   = "the body of the answer"
	portal = "<!doctype html>\n<html><head><title>Welcome</title></head><body><h1>Log in to use this network</h1></body></html>\n"
)

// serve starts a server with one endpoint, "page", behind switches.
func serve(t *testing.T) (*fault.Switches, func() (*http.Response, string, error)) {
	t.Helper()
	switches := fault.New(fault.Options{Answer: func(w http.ResponseWriter, _ *http.Request, f fault.Fault) {
		w.Header().Set("Retry-After", f.RetryAfter)
		w.WriteHeader(f.Status)
	}, Client: func(*http.Request) string { return "a" }})
	server := httptest.NewServer(switches.Wrap("page", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("Content-Length", "22")
		_, _ = io.WriteString(w, text)
	})))
	t.Cleanup(server.Close)
	get := func() (*http.Response, string, error) {
		answer, err := http.Get(server.URL + "/page")
		if err != nil {
			return nil, "", err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return answer, string(body), err
	}
	return switches, get
}

func TestWhatGoesWrong(t *testing.T) {
	for name, c := range map[string]struct {
		faults []fault.Fault
		status int
		body   string
		cut    bool
		header string // of ETag
	}{
		"nothing":            {status: 200, body: text, header: `"1"`},
		"another endpoint":   {faults: []fault.Fault{{Endpoint: "other", Kind: fault.Answer, Status: 500}}, status: 200, body: text, header: `"1"`},
		"another path":       {faults: []fault.Fault{{Match: "/other", Kind: fault.Answer, Status: 500}}, status: 200, body: text, header: `"1"`},
		"another answer":     {faults: []fault.Fault{{Endpoint: "page", Kind: fault.Answer, Status: 503}}, status: 503},
		"no answer at all":   {faults: []fault.Fault{{Kind: fault.Cut}}, cut: true},
		"half an answer":     {faults: []fault.Fault{{Kind: fault.Cut, Bytes: 8}}, status: 200, body: "the body", cut: true, header: `"1"`},
		"a wrong byte":       {faults: []fault.Fault{{Kind: fault.Corrupt, Bytes: 4}}, status: 200, body: "the " + string(rune('b'^1)) + "ody of the answer", header: `"1"`},
		"a portal's page":    {faults: []fault.Fault{{Kind: fault.HTML}}, status: 200, body: portal},
		"a reset":            {faults: []fault.Fault{{Kind: fault.Reset}}, cut: true},
		"a reset on the way": {faults: []fault.Fault{{Kind: fault.Reset, Bytes: 8}}, cut: true},
		"too much":           {faults: []fault.Fault{{Kind: fault.Endless, Bytes: 30}}, status: 200, body: text + "        ", header: `"1"`},
		"a bomb":             {faults: []fault.Fault{{Kind: fault.Bomb, Bytes: 9 << 20}}, status: 200, body: strings.Repeat("\x00", 9<<20), header: `"1"`},
		"another client":     {faults: []fault.Fault{{Client: "b", Kind: fault.Answer, Status: 500}}, status: 200, body: text, header: `"1"`},
		"this client":        {faults: []fault.Fault{{Client: "a", Kind: fault.Answer, Status: 500}}, status: 500},
		"drops":              {faults: []fault.Fault{{Kind: fault.Drip, Bytes: 9, Wait: time.Millisecond}}, status: 200, body: text, header: `"1"`},
		"several at a time":  {faults: []fault.Fault{{Kind: fault.Slow, Bytes: 1000}, {Kind: fault.Corrupt}, {Kind: fault.Cut, Bytes: 8}}, status: 200, body: "uhe body", cut: true, header: `"1"`},
	} {
		t.Run(name, func(t *testing.T) {
			switches, get := serve(t)
			for _, f := range c.faults {
				expect.Value(switches.Inject(f))(t)
			}
			answer, body, err := get()
			if cut := err != nil; cut != c.cut {
				t.Fatalf("error %v", err)
			}
			if c.status == 0 {
				return
			}
			if answer.StatusCode != c.status || body != c.body || answer.Header.Get("ETag") != c.header {
				t.Errorf("got %d, %q, ETag %q", answer.StatusCode, body, answer.Header.Get("ETag"))
			}
		})
	}
}

func TestAFaultLastsAsLongAsItIsToldTo(t *testing.T) {
	switches, get := serve(t)
	status := func() int {
		answer, _, err := get()
		expect.Check(t, err)
		return answer.StatusCode
	}
	expect.Value(switches.Inject(fault.Fault{Kind: fault.Answer, Status: 503, Skip: 1, Times: 2}))(t)
	for i, want := range []int{200, 503, 503, 200} {
		expect.Equal(t, status(), want, "request %d", i)
	}
	expect.Equal(t, len(switches.Active()), 0, "still active")
	expect.Value(switches.Inject(fault.Fault{Endpoint: "page", Kind: fault.Answer, Status: 500}))(t)
	switches.Clear("other")
	expect.Equal(t, status(), 500, "clearing another endpoint")
	switches.Clear("page")
	expect.Equal(t, status(), 200, "after clearing")
}

func TestWhatWouldDoNothingIsRefused(t *testing.T) {
	for name, f := range map[string]fault.Fault{
		"an unknown kind":         {Kind: "explode"},
		"no status":               {Kind: fault.Answer},
		"no speed":                {Kind: fault.Slow},
		"no drops":                {Kind: fault.Drip, Wait: time.Second},
		"no time between drops":   {Kind: fault.Drip, Bytes: 1},
		"a clock that is right":   {Kind: fault.Clock},
		"no time":                 {Kind: fault.Delay},
		"a negative byte offset":  {Kind: fault.Cut, Bytes: -1},
		"a negative repetition":   {Kind: fault.Cut, Times: -1},
		"a status without answer": {Kind: fault.Answer, Status: 100},
	} {
		expect.ErrorWith(t, expect.ErrorOf(fault.New(fault.Options{}).Inject(f)), "cannot inject fault: ", "%s", name)
	}
}
