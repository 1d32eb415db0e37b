package control_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
)

// site is the part of a backend that notes what it is asked.
type site struct {
	told     []any // the requests, as they came
	siteErr  error
	lock     control.Lock
	released []control.Lock
	entries  []control.Entry
	verified control.Verification
	database string // file
}

func (s *site) tell(r any) error {
	s.told = append(s.told, r)
	return s.siteErr
}

func (s *site) Approve(_ context.Context, r control.AnswerRequest) error { return s.tell(r) }
func (s *site) Reject(_ context.Context, r control.AnswerRequest) error  { return s.tell(r) }

func (s *site) AcceptRollback(_ context.Context, r control.RollbackRequest) error {
	return s.tell(r)
}

func (s *site) Rollback(_ context.Context, r control.ReturnRequest) error { return s.tell(r) }

func (s *site) Hold(_ context.Context, r control.HoldRequest) (control.Lock, error) {
	return s.lock, s.tell(r)
}

func (s *site) Release(_ context.Context, r control.ReleaseRequest) ([]control.Lock, error) {
	return s.released, s.tell(r)
}

func (s *site) History(_ context.Context, r control.HistoryRequest) ([]control.Entry, error) {
	return s.entries, s.tell(r)
}

func (s *site) Backup(context.Context) (*os.File, error) { return os.Open(s.database) }

func (s *site) VerifyHistory(context.Context) (control.Verification, error) {
	return s.verified, s.siteErr
}

var revisionA = "sha256:" + strings.Repeat("a", 64)

// self is the caller that this process is.
func self() control.Caller {
	c := control.Caller{UID: uint32(os.Getuid()), PID: int32(os.Getpid())}
	if c.UID == 0 {
		c.User = "root"
	}
	return c
}

// The caller comes from the socket, never from the request.
func TestRequestsArriveWithTheirCaller(t *testing.T) {
	b := &backend{}
	until := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	b.lock = control.Lock{Holder: "shift", Until: until}
	b.released = []control.Lock{b.lock}
	b.entries = []control.Entry{{Sequence: 1<<64 - 1, Kind: "change.approved", Chain: "sha256:1"}}
	b.verified = control.Verification{Entries: 7, First: 3, Head: "sha256:1"}
	client, _ := serve(t, b)
	ctx := t.Context()
	forged := control.Caller{UID: 4711, User: "mallory"}

	answer := control.AnswerRequest{Deployment: "d", Revision: revisionA, Reason: "läuft gut"}
	hold := control.HoldRequest{Holder: "shift", Reason: "batch 7", Deployment: "d", Seconds: 7200}
	release := control.ReleaseRequest{Holder: "shift"}
	back := control.ReturnRequest{Deployment: "d", Revision: revisionA, Reason: "noisy"}
	asked := answer
	asked.Caller = forged
	check(t, errors.Join(client.Approve(ctx, asked), client.Reject(ctx, asked), client.Rollback(ctx, back)))
	expect.Equal(t, expect.Value(client.Hold(ctx, hold))(t), b.lock, "hold")
	expect.Equal(t, expect.Value(client.Release(ctx, release))(t), b.released, "release")
	history := control.HistoryRequest{Since: 1<<64 - 1, Last: 20, Deployment: "d&e"}
	expect.Equal(t, expect.Value(client.History(ctx, history))(t), b.entries, "history")
	expect.Equal(t, expect.Value(client.VerifyHistory(ctx))(t), b.verified, "verify")
	accept, down, pull := control.RollbackRequest{Version: 3, Digest: "sha256:1", UID: 4711}, control.DownRequest{Project: "p", Volumes: true}, control.ComposeRequest{Project: "p"}
	check(t, errors.Join(client.AcceptRollback(ctx, accept), client.ComposeDown(ctx, down), client.ComposePull(ctx, pull, func(control.Event) {})))
	unneeded := expect.Value(client.Unneeded(ctx))(t)
	expect.Equal(t, expect.Value(client.Prune(ctx, unneeded))(t), unneeded, "prune")
	accept.UID = self().UID
	answer.Caller, hold.Caller, release.Caller, back.Caller = self(), self(), self(), self()
	expect.Equal(t, b.told, []any{answer, answer, back, hold, release, history, accept, down, pull, unneeded}, "the agent was asked")
}

func TestRequestsThatCannotSucceedAreTold(t *testing.T) {
	b := &backend{}
	_, path := serve(t, b)
	valid := `"deployment":"d","revision":"` + revisionA + `"`
	for _, c := range []struct{ url, body, want string }{
		{"/v1/approve", ``, "the body is empty"},
		{"/v1/approve", `deployment=d`, "invalid character"},
		{"/v1/approve", `{}`, "deployment is missing"},
		{"/v1/approve", `{"deployment":"d"}`, "revision is missing"},
		{"/v1/approve", `{"deployment":"d","revision":"sha256:aaaa"}`, "64 lowercase hex digits"},
		{"/v1/approve", `{"deployment":"d","revision":"` + strings.ToUpper(revisionA) + `"}`, "64 lowercase hex digits"},
		{"/v1/approve", `{"deployment":"d\u001b[2J","revision":"` + revisionA + `"}`, "deployment contains an unprintable"},
		{"/v1/approve", `{"deployment":"` + strings.Repeat("d", 257) + `","revision":"` + revisionA + `"}`, "deployment is longer than 256 bytes"},
		{"/v1/approve", `{` + valid + `,"caller":{"UID":0}}`, "unknown field"},
		{"/v1/approve", `{` + valid + `,"Caller":{"UID":0}}`, "unknown field"},
		{"/v1/approve", `{` + valid + `} {}`, "more than one document"},
		{"/v1/reject", `{` + valid + `,"reason":"one\ntwo"}`, "reason contains an unprintable"},
		{"/v1/reject", `{` + valid + `,"reason":"a\u202eb"}`, "unprintable"},
		{"/v1/reject", `{` + valid + ",\"reason\":\"a\xffb\"}", "unprintable"},
		{"/v1/reject", `{` + valid + `,"reason":"` + strings.Repeat("r", 513) + `"}`, "reason is longer than 512 bytes"},
		{"/v1/hold", `{"seconds":-1}`, "not -1"},
		{"/v1/hold", `{"seconds":316224001}`, "not 316224001"},
		{"/v1/hold", `{"seconds":1.5}`, "cannot unmarshal"},
		{"/v1/hold", `{"for":"2h"}`, "unknown field"},
		{"/v1/hold", `{"holder":"a\u0000"}`, "holder contains"},
		{"/v1/hold", `{"holder":"` + strings.Repeat("h", 129) + `"}`, "holder is longer than 128 bytes"},
		{"/v1/release", `{"holder":"a","all":true}`, "not both"},
		{"/v1/release", `[]`, "cannot unmarshal"},
		{"/v1/rollback", `{"reason":"noisy"}`, "deployment is missing"},
		{"/v1/rollback", `{"deployment":"d","revision":"the one before"}`, "64 lowercase hex digits"},
		{"/v1/accept-rollback", `{}`, "name the version"},
		{"/v1/accept-rollback", `{"version":3}`, "name the version and the digest"},
		{"/v1/accept-rollback", `{"version":3,"digest":"sha256:1","uid":0}`, "uid"},
		{"/v1/compose/up", `{}`, "project is missing"},
		{"/v1/compose/up", `{"project":"p","file":"compose.yaml"}`, "absolute path"},
		{"/v1/compose/up", `{"project":"p","files":["/a","b"]}`, "absolute path"},
		{"/v1/compose/up", `{"project":"p","pull":"sometimes"}`, "sometimes"},
		{"/v1/compose/up", `{"project":"p","scale":{"web":-1}}`, "web"},
		{"/v1/compose/pull", `{"project":"p","timeout":3601}`, "timeout"},
		{"/v1/compose/down", `{"volumes":true}`, "project is missing"},
		{"/v1/compose/down", `{"project":"p","timeout":-1}`, "timeout"},
		{"/v1/prune", `{}`, "cannot unmarshal"},
		{"/v1/exec", `{"deployment":"d","service":"s"}`, "command is missing"},
		{"/v1/exec", `{"deployment":"d","service":"s","args":["a\u0000b"]}`, "NUL"},
		{"/v1/exec", `{"deployment":"d","service":"s","args":["a"],"env":["A"]}`, "not NAME=VALUE"},
		{"/v1/exec", `{"deployment":"d","service":"s","args":["a"` + strings.Repeat(`,""`, 1024) + `]}`, "more than 1024"},
		{"/v1/exec", `{"deployment":"d","project":"p","service":"s","args":["a"]}`, "one deployment"},
		{"/v1/exec", `{"deployment":"d","service":"s","args":["a"],"number":-1}`, "replica number"},
	} {
		if code, answer := curl(t, path, http.MethodPost, c.url, c.body); code != http.StatusBadRequest || !strings.Contains(answer, c.want) {
			t.Errorf("%s %.200s was answered %d, %q, want 400 and %q", c.url, c.body, code, answer, c.want)
		}
	}
	for _, query := range []string{"since=-1", "since=a", "last=-1", "last=99999999999", "last=ten", "deployment=a%0ab"} {
		if code, answer := curl(t, path, http.MethodGet, "/v1/history?"+query, ""); code != http.StatusBadRequest {
			t.Errorf("%s was answered %d, %q", query, code, answer)
		}
	}
	for _, c := range []struct {
		method, url, want string
		code              int
	}{
		{http.MethodGet, "/v1/approve", "/v1/approve takes POST, not GET", 405},
		{http.MethodDelete, "/v1/hold", "/v1/hold takes POST, not DELETE", 405},
		{http.MethodPost, "/v1/history", "/v1/history takes GET, HEAD, not POST", 405},
		{http.MethodGet, "/v1/histories", "there is no /v1/histories", 404},
		{http.MethodGet, "/v1/history/", "there is no /v1/history/", 404},
	} {
		code, answer := curl(t, path, c.method, c.url, "")
		if code != c.code || answer != fmt.Sprintf("{\"error\":%q}\n", c.want) {
			t.Errorf("%s %s was answered %d, %q", c.method, c.url, code, answer)
		}
	}
	if code, answer := curl(t, path, http.MethodPost, "/v1/approve", `{"reason":"`+strings.Repeat("r", 1<<20)+`"}`); code != http.StatusRequestEntityTooLarge || !strings.Contains(answer, "longer than 16384 bytes") {
		t.Errorf("a megabyte was answered %d, %.200q", code, answer)
	}
	expect.Equal(t, b.told, nil, "the agent was asked")
}

// The client tells the errors of a Backend apart, in the agent's own words.
func TestErrorsAreToldApart(t *testing.T) {
	b := &backend{}
	client, _ := serve(t, b)
	for _, want := range []error{control.ErrNotFound, control.ErrInvalid, control.ErrConflict, control.ErrBusy} {
		b.siteErr = fmt.Errorf("%w: because", want)
		err := client.Approve(t.Context(), control.AnswerRequest{Deployment: "d", Revision: revisionA})
		expect.True(t, errors.Is(err, want) && err.Error() == want.Error()+": because", "%v, want %v", err, want)
	}
	b.siteErr = errors.New("the disk is full")
	err := client.Approve(t.Context(), control.AnswerRequest{Deployment: "d", Revision: revisionA})
	expect.True(t, err != nil && err.Error() == "the disk is full" && !errors.Is(err, control.ErrConflict), "%v", err)
}

func TestEventsHaveAShortName(t *testing.T) {
	b := &backend{events: make(chan control.Event, 1)}
	_, path := serve(t, b)
	b.events <- control.Event{Kind: control.ChangeWaits, Deployment: "d"}
	close(b.events)
	if code, answer := curl(t, path, http.MethodGet, "/events", ""); code != http.StatusOK || !strings.Contains(answer, `"kind":"change.waits","deployment":"d"`) {
		t.Errorf("answered %d, %q", code, answer)
	}
}

// checked fails the test unless requests could be asked of a backend.
func checked(t *testing.T, requests []any) {
	t.Helper()
	for _, request := range requests {
		by, revision, texts := self(), revisionA, []string(nil)
		switch r := request.(type) {
		case control.AnswerRequest:
			by, revision, texts = r.Caller, r.Revision, []string{r.Deployment, r.Reason}
		case control.ReturnRequest:
			by, revision, texts = r.Caller, cmp.Or(r.Revision, revisionA), []string{r.Deployment, r.Reason}
		case control.HoldRequest:
			by, texts = r.Caller, []string{r.Holder, r.Deployment, r.Reason}
		case control.ReleaseRequest:
			by, texts = r.Caller, []string{r.Holder}
		}
		unfit := func(text string) bool {
			return len(text) > control.MaxReason || strings.ContainsAny(text, "\x00\n\r\x1b")
		}
		if by != self() || len(revision) != len(revisionA) || !strings.HasPrefix(revision, "sha256:") || slices.ContainsFunc(texts, unfit) {
			t.Errorf("the agent was asked %+v", request)
		}
	}
}

// FuzzServer sends bytes to the socket. Whatever they are, the server goes on, reports no
// internal error, and passes on no request that it has to refuse.
func FuzzServer(f *testing.F) {
	post := func(path, body string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: m\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	}
	for _, seed := range []string{
		"", "\r\n\r\n", "\x00\x01\x02", "GET / HTTP/1.1\r\n\r\n", "GET /v1/status HTTP/1.0\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"GET /v1/events HTTP/1.1\r\nHost: m\r\n\r\nGET /v1/status HTTP/1.1\r\nHost: m\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: m\r\n\r\n",
		"CONNECT /v1/hold HTTP/1.1\r\nHost: m\r\n\r\n", "GET //v1/../v1/history?since=%zz HTTP/1.1\r\nHost: m\r\n\r\n",
		post("/v1/approve", `{"deployment":"d","revision":"`+revisionA+`","reason":"r"}`),
		post("/v1/hold", `{"holder":"a","seconds":3600}`) + post("/v1/release", `{"all":true}`),
		post("/v1/rollback", `{"deployment":"d"}`) + "GET /v1/history?last=3 HTTP/1.1\r\nHost: m\r\n\r\n",
		"POST /v1/reject HTTP/1.1\r\nHost: m\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"POST /v1/reject HTTP/1.1\r\nHost: m\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n{",
		"POST /v1/exec HTTP/1.1\r\nHost: m\r\nConnection: Upgrade\r\nUpgrade: margolite-exec/1\r\nContent-Length: 47\r\n\r\n{\"deployment\":\"d\",\"service\":\"s\",\"args\":[\"true\"]}\x00\x00\x00\x00\x00",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, request []byte) {
		exec := func(context.Context, control.ExecRequest, control.ExecStreams) (int, error) { return 0, nil }
		b := &backend{exec: exec, events: make(chan control.Event)}
		close(b.events)
		_, path := serve(t, b)
		conn := expect.Value(net.Dial("unix", path))(t)
		defer conn.Close()
		check(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		_, _ = conn.Write(request) // which the server may refuse to read to its end
		_ = conn.(*net.UnixConn).CloseWrite()
		answers := bufio.NewReader(conn)
		for {
			res, err := http.ReadResponse(answers, nil)
			if err != nil {
				break
			}
			if res.StatusCode == http.StatusInternalServerError || res.StatusCode == http.StatusServiceUnavailable {
				t.Fatalf("%q was answered %s", request, res.Status)
			}
			if res.StatusCode == http.StatusSwitchingProtocols {
				break
			}
			if _, err := io.Copy(io.Discard, res.Body); err != nil {
				break
			}
		}
		if _, err := control.Dial(path).Status(t.Context()); err != nil {
			t.Fatalf("after %q: %v", request, err)
		}
		checked(t, b.told)
	})
}
