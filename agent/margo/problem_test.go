package margo_test

import (
	"cmp"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
)

func TestProblemIsMadeOfWhateverAnAnswerHolds(t *testing.T) {
	const never, always = margo.BackoffNone, margo.BackoffExponential
	for name, row := range map[string]struct {
		status int
		body   string
		want   margo.ProblemDetail // of this status, and of type about:blank where there is none
	}{
		"the published example": {
			404, string(document(t, "valid/from-text/ProblemDetail-spiffe-bundle-not-found.json")),
			margo.ProblemDetail{
				Type: margo.ProblemBase + "spiffe-bundle-not-found", Title: "Bundle Not Found",
				Detail: "SPIFFE bundle unavailable.", Instance: "/.well-known/spiffe/bundle.json",
				Retryable: true, RetryAfterSeconds: 30, Backoff: always,
			},
		},
		"field errors": {
			422, `{"errors":[{"field":"a","message":"b"},7,{}]}`,
			margo.ProblemDetail{Backoff: never, Errors: []margo.FieldError{{Field: "a", Message: "b"}, {}}},
		},
		"ERR-05 retryable by its status":   {503, `{"title":"Away"}`, margo.ProblemDetail{Title: "Away", Retryable: true, Backoff: always}},
		"ERR-05 not retryable, as it says": {503, `{"retryable":false}`, margo.ProblemDetail{Backoff: never}},
		"ERR-06 to be repeated at a fixed interval": {
			400, `{"retryable":true,"retryAfterSeconds":5,"backoffStrategy":"fixed"}`,
			margo.ProblemDetail{Retryable: true, RetryAfterSeconds: 5, Backoff: margo.BackoffFixed},
		},
		"ERR-06 not to be repeated at all": {503, `{"backoffStrategy":"none"}`, margo.ProblemDetail{Retryable: true, Backoff: never}},
		"ERR-02 a type that nobody knows": {
			409, `{"type":"https://vendor.example/problems#busy","detail":"another change is under way"}`,
			margo.ProblemDetail{Type: "https://vendor.example/problems#busy", Detail: "another change is under way", Backoff: never},
		},
		"ERR-07 members that nobody knows": {
			403, `{"x":{"y":[1,2,{"z":null}]},"title":"No","retryAfter":7,"Type":"about:other","trace":"\u0000"}`,
			margo.ProblemDetail{Title: "No", Backoff: never},
		},
		"ERR-07 members of the wrong type": {
			400, `{"type":1,"title":[],"detail":{},"retryable":"yes","retryAfterSeconds":"soon","backoffStrategy":"wild","errors":{}}`,
			margo.ProblemDetail{Backoff: never},
		},
		"the status of the answer counts, as with a WFM in the field": {401, `{"status":403}`, margo.ProblemDetail{Backoff: never}},
		"a number of seconds beyond all bounds": {
			429, `{"retryAfterSeconds":18446744073709551615}`,
			margo.ProblemDetail{Retryable: true, RetryAfterSeconds: 1<<31 - 1, Backoff: always},
		},
		"an answer of an earlier revision": {
			403, `{"error":"forbidden","message":"not approved yet"}`,
			margo.ProblemDetail{Title: "forbidden", Detail: "not approved yet", Backoff: never},
		},
		"ERR-02 plain text of several lines": {404, "404 page\r\n not\x00found\n", margo.ProblemDetail{Detail: "404 page not found", Backoff: never}},
	} {
		t.Run(name, func(t *testing.T) {
			row.want.Status, row.want.Type = row.status, cmp.Or(row.want.Type, "about:blank")
			same(t, row.want, margo.ParseProblem(margo.ProblemMediaType, row.status, []byte(row.body)))
		})
	}
	page := margo.ParseProblem("text/html", 502, []byte("<!DOCTYPE html><html>..."))
	expect.Equal(t, page.Detail, "", "detail of a page of a proxy")
}

// The conformance toolkit's mock names rules in place of fields, and says all of it twice.
func TestERR02TheToolkitsProblemsAreShownWhole(t *testing.T) {
	p := margo.ParseProblem(margo.ProblemMediaType, 422, []byte(`{"detail":"Request body includes a semantic error.","error":"Request body includes a semantic error.",
		"errors":[{"message":"adoptedManifestVersion is required","rule_id":"status-miaf-001"}],"instance":"/v1alpha2/margo/api/v1/deployments/a/status",
		"status":422,"title":"Semantic Error","type":"`+margo.ProblemBase+`semantic-error"}`))
	const want = "cannot report: the WFM answered 422 Unprocessable Entity: Semantic Error: Request body includes a semantic error.; adoptedManifestVersion is required"
	if got := p.Describe("report", "the WFM", 422, ""); got != want || p.Kind() != margo.ProblemSemanticError {
		t.Errorf("got %q, %q", p.Kind(), got)
	}
}

func TestERR01ProblemKindIsFoundInEveryRegistryOfTheSpecification(t *testing.T) {
	for uri, want := range map[string]margo.ProblemKind{
		"https://docs.margo.org/specification/problem-types#invalid-request":                                 margo.ProblemInvalidRequest,
		"https://docs.margo.org/specification/problem-types/semantic-error":                                  margo.ProblemSemanticError,
		"https://docs.margo.org/specification/margo-management-interface/problem-types#device-not-found":     margo.ProblemDeviceNotFound,
		"https://docs.margo.org/specification/margo-management-interface/problem-types/deployment-not-found": margo.ProblemDeploymentNotFound,
		"https://docs.margo.org/specification/problems/invalid-bundle":                                       margo.ProblemInvalidBundle,
		"https://margo.org/docs/errors/wfm-client-relationship-retired":                                      margo.ProblemNotAuthorized,
		"https://docs.margo.org/specification/problem-types#wfm-client-relationship-retired":                 margo.ProblemNotAuthorized,
		"https://docs.margo.org/specification/problem-types#signature-verification-failed":                   margo.ProblemSignatureVerificationFailed,
		"https://margo.org/problems/semantic-error":                                                          margo.ProblemSemanticError,
		"https://margo.org/problems/invalid-certificate":                                                     margo.ProblemInvalidCertificateFormat,
		"https://margo.org/problems/not-acceptable":                                                          margo.ProblemCannotGenerateResponse,
		"https://margo.org/problems/rate-limit-exceeded":                                                     margo.ProblemOther,
		"https://docs.margo.org/specification/problem-types#something-new":                                   margo.ProblemOther,
		"https://docs.margo.org/specification/problem-types#":                                                margo.ProblemOther,
		"https://vendor.example/problem-types#invalid-request":                                               margo.ProblemOther,
		"invalid-request": margo.ProblemOther,
		"about:blank":     margo.ProblemOther,
		"":                margo.ProblemOther,
	} {
		expect.Equal(t, (margo.ProblemDetail{Type: uri}).Kind(), want, "%s", uri)
	}
}

func TestRetiredRelationshipIsRecognisedInBothItsForms(t *testing.T) {
	for name, row := range map[string]struct {
		problem margo.ProblemDetail
		want    bool
	}{
		"the published example": {margo.ParseProblem(margo.ProblemMediaType, 403, document(t, "valid/from-text/ProblemDetail-client-relationship-retired.json")), true},
		"the type of the text":  {margo.ProblemDetail{Type: "https://margo.org/docs/errors/wfm-client-relationship-retired"}, true},
		"not authorized":        {margo.ProblemDetail{Type: margo.ProblemBase + "not-authorized", Title: "Not Authorized"}, false},
		"only a title":          {margo.ProblemDetail{Type: "about:blank", Title: "Client Relationship Retired"}, false},
	} {
		expect.Equal(t, row.problem.Retired(), row.want, "%s", name)
	}
}

func TestERR04AnAnswerSaysWhenToComeAgain(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	for name, row := range map[string]struct {
		header, date string
		seconds      int // of the problem
		want         time.Duration
	}{
		"nothing":                       {},
		"seconds":                       {header: "120", want: 2 * time.Minute},
		"the problem":                   {seconds: 5, want: 5 * time.Second},
		"the header wins":               {header: "120", seconds: 5, want: 2 * time.Minute},
		"an absurd number":              {header: "99999999999999999999", want: day},
		"an absurd problem":             {seconds: 1<<31 - 1, want: day},
		"a date, by the clock here":     {header: "Fri, 01 May 2026 12:00:30 GMT", want: 30 * time.Second},
		"a date, by the server's clock": {header: "Fri, 01 May 2026 12:00:30 GMT", date: "Fri, 01 May 2026 11:50:30 GMT", want: 10 * time.Minute},
		"a date long past":              {header: "Fri, 01 May 2020 12:00:30 GMT"},
		"nonsense":                      {header: "soon", seconds: 5},
	} {
		header := http.Header{"Retry-After": {row.header}, "Date": {row.date}}
		expect.Equal(t, margo.RetryAfter(header, margo.ProblemDetail{RetryAfterSeconds: row.seconds}, now), row.want, "%s", name)
	}
}

func FuzzParseProblem(f *testing.F) {
	f.Add(margo.ProblemMediaType, 404, document(f, "valid/from-text/ProblemDetail-spiffe-bundle-not-found.json"))
	f.Add("application/json", 403, []byte(`{"error":"x","message":"y"}`))
	f.Add("text/html", 502, []byte("<html>"))
	f.Add("", 0, []byte("\xff\x00"))
	f.Fuzz(func(t *testing.T, contentType string, status int, body []byte) {
		p := margo.ParseProblem(contentType, status, body)
		expect.Require(t, p.Type != "" && p.Status == status && p.RetryAfterSeconds >= 0 && p.Backoff != "", "got %+v", p)
		for _, text := range []string{p.Type, p.Title, p.Detail, p.Instance} {
			if len(text) > 1024 || !utf8.ValidString(text) || strings.ContainsAny(text, "\r\n\x00\x1b") {
				t.Fatalf("text is not fit to be shown: %q", text)
			}
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, seed := range []string{"", "0", "120", "-1", "1.5", "99999999999999999999", " 7 ", "Fri, 01 May 2026 12:00:30 GMT", "Friday, 01-May-26 12:00:30 GMT", "Fri May  1 12:00:30 2026", "soon"} {
		f.Add(seed, "")
		f.Add(seed, "Fri, 01 May 2026 11:00:00 GMT")
	}
	f.Fuzz(func(t *testing.T, value, date string) {
		got := margo.RetryAfter(http.Header{"Retry-After": {value}, "Date": {date}}, margo.ProblemDetail{}, now)
		expect.Require(t, got >= 0 && got <= 24*time.Hour, "Retry-After %q with Date %q: %s", value, date, got)
	})
}
