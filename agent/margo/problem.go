package margo

import (
	"cmp"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ProblemMediaType is the media type of error answers (RFC 9457).
const ProblemMediaType = "application/problem+json"

// ProblemBase is the registry of Margo's problem types.
const ProblemBase = "https://docs.margo.org/specification/problem-types#"

// MaxProblemBytes bounds the body of an error answer.
const MaxProblemBytes = 64 << 10

const aboutBlank = "about:blank"

// ProblemKind is a registered problem type without the registry that it was written with.
type ProblemKind string

// The problem types of the registry.
const (
	ProblemOther                     ProblemKind = "" // about:blank, a vendor's own, or none: act on the status (ERR-02)
	ProblemInvalidRequest            ProblemKind = "invalid-request"
	ProblemSemanticError             ProblemKind = "semantic-error"
	ProblemNotAuthorized             ProblemKind = "not-authorized"
	ProblemGatewayNotFound           ProblemKind = "gateway-not-found"
	ProblemDeviceNotFound            ProblemKind = "device-not-found"
	ProblemInvalidBundle             ProblemKind = "invalid-bundle"
	ProblemDeploymentNotFound        ProblemKind = "deployment-not-found"
	ProblemDiscoveryDocumentNotFound ProblemKind = "discovery-document-not-found"
	ProblemSPIFFEBundleNotFound      ProblemKind = "spiffe-bundle-not-found"
	ProblemCannotGenerateResponse    ProblemKind = "server-cannot-generate-response"
)

// The problem types of an earlier registry, from the time of signed requests.
const (
	ProblemInvalidCertificateFormat    ProblemKind = "invalid-certificate-format"
	ProblemInvalidDigestHeader         ProblemKind = "invalid-digest-header"
	ProblemSignatureVerificationFailed ProblemKind = "signature-verification-failed"
	ProblemCertificateNotTrusted       ProblemKind = "certificate-not-trusted"
	ProblemInvalidClient               ProblemKind = "invalid-client"
)

// The end of the relationship with a WFM has a type that the specification's text names and its
// registry lacks; the published example has not-authorized with a title of its own.
const (
	relationshipRetired      = "wfm-client-relationship-retired"
	relationshipRetiredTitle = "Client Relationship Retired"
)

// Backoff is how a failed request shall be repeated (ERR-06).
type Backoff string

const (
	BackoffNone        Backoff = "none"        // not at all
	BackoffFixed       Backoff = "fixed"       // every RetryAfterSeconds
	BackoffExponential Backoff = "exponential" // starting at RetryAfterSeconds
)

// ProblemDetail is the body of an error answer.
type ProblemDetail struct {
	Type              string       `json:"type"` // URI reference, never fetched (ERR-03); "about:blank" where none was given
	Title             string       `json:"title"`
	Status            int          `json:"status"` // of the HTTP answer
	Detail            string       `json:"detail,omitempty"`
	Instance          string       `json:"instance,omitempty"`
	Retryable         bool         `json:"retryable"`                   // as given, else derived from kind and status (ERR-05)
	RetryAfterSeconds int          `json:"retryAfterSeconds,omitempty"` // advisory, the Retry-After header wins; 0: not given
	Backoff           Backoff      `json:"backoffStrategy,omitempty"`
	Errors            []FieldError `json:"errors,omitempty"`
}

// FieldError tells what is wrong in which member of a request's body.
type FieldError struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// ParseProblem makes a ProblemDetail to act on of any error answer, whatever its body (A-39,
// The status is the HTTP answer's. Texts are made fit to be shown and logged.
func ParseProblem(contentType string, status int, body []byte) ProblemDetail {
	p := ProblemDetail{Type: aboutBlank, Status: status}
	mediaType, _, _ := mime.ParseMediaType(contentType)
	root, err := parseJSON(body, limits{bytes: MaxProblemBytes, depth: 32, nodes: 4096})
	if err != nil || root.kind != object {
		if mediaType != "text/html" { // a page of some proxy says nothing in its first lines
			p.Detail = Shown(string(body[:min(len(body), MaxProblemBytes)]), 1024)
		}
	}
	n := node{tree: root}
	if t := shown(n.member("type"), 1024); t != "" {
		p.Type = t
	}
	// Earlier revisions have {error, message}, and a WFM in the field {Error}.
	p.Title = shown(firstOf(n.member("title"), n.member("error"), n.member("Error")), 256)
	p.Detail = cmp.Or(p.Detail, shown(firstOf(n.member("detail"), n.member("message")), 1024))
	p.Instance = shown(n.member("instance"), 1024)
	p.Retryable = retryable(p.Kind(), status)
	if given := n.member("retryable"); given.kind == boolean {
		p.Retryable = given.literal == "true"
	}
	if seconds := n.member("retryAfterSeconds"); seconds.kind == number {
		v, _ := parseUint(seconds.literal)
		p.RetryAfterSeconds = int(min(v, 1<<31-1))
	}
	switch b := Backoff(shown(n.member("backoffStrategy"), 32)); {
	case b == BackoffNone, b == BackoffFixed, b == BackoffExponential:
		p.Backoff = b
	case p.Retryable:
		p.Backoff = BackoffExponential
	default:
		p.Backoff = BackoffNone
	}
	p.Errors = fieldErrors(n.member("errors"))
	return p
}

// retryable is the registry's answer for a problem that has none itself; 408, 502 and 504 come
// from machines in between.
func retryable(kind ProblemKind, status int) bool {
	if kind == ProblemSPIFFEBundleNotFound {
		return true
	}
	return slices.Contains([]int{408, 429, 500, 502, 503, 504}, status)
}

func firstOf(nodes ...node) node {
	for _, n := range nodes {
		if n.given() {
			return n
		}
	}
	return nodes[len(nodes)-1]
}

func shown(n node, max int) string {
	if n.kind != text {
		return ""
	}
	return Shown(n.literal, max)
}

func fieldErrors(n node) []FieldError {
	var errs []FieldError
	n.each(func(n node) {
		if len(errs) < maxErrors && n.kind == object {
			errs = append(errs, FieldError{shown(n.member("field"), 256), shown(n.member("message"), 256)})
		}
	})
	return errs
}

// Describe says in one sentence who answered a request with which status, and what the problem
// adds. location is the target of a redirect that is not followed; empty: none.
func (p ProblemDetail) Describe(op, who string, status int, location string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cannot %s: %s answered %d %s", op, who, status, http.StatusText(status))
	if location != "" {
		fmt.Fprintf(&b, ", a redirect to %q, which is not followed", ShownURL(location))
	}
	for _, text := range []string{p.Title, p.Detail} {
		if text != "" && text != http.StatusText(status) {
			b.WriteString(": ")
			b.WriteString(text)
		}
	}
	for _, field := range p.Errors {
		b.WriteString("; " + strings.TrimPrefix(field.Field+": "+field.Message, ": ")) // some name no field
	}
	return b.String()
}

// Kind identifies the problem type (ERR-01), if it is from a known registry: a vendor may use the
// same words for something else.
func (p ProblemDetail) Kind() ProblemKind {
	switch kind := ProblemKind(p.fragment()); kind {
	case relationshipRetired:
		return ProblemNotAuthorized
	case "invalid-certificate": // of the first registry, as the next
		return ProblemInvalidCertificateFormat
	case "not-acceptable":
		return ProblemCannotGenerateResponse
	case ProblemInvalidRequest, ProblemSemanticError, ProblemNotAuthorized, ProblemGatewayNotFound,
		ProblemDeviceNotFound, ProblemInvalidBundle, ProblemDeploymentNotFound,
		ProblemDiscoveryDocumentNotFound, ProblemSPIFFEBundleNotFound, ProblemCannotGenerateResponse,
		ProblemInvalidCertificateFormat, ProblemInvalidDigestHeader, ProblemSignatureVerificationFailed,
		ProblemCertificateNotTrusted, ProblemInvalidClient:
		return kind
	}
	return ProblemOther
}

// fragment is the last part of a type from one of the registries that the specification has named
//
func (p ProblemDetail) fragment() string {
	for _, registry := range []string{"https://docs.margo.org/specification/", "https://margo.org/docs/errors/", "https://margo.org/problems/"} {
		if name, ok := strings.CutPrefix(p.Type, registry); ok {
			return name[strings.LastIndexAny(name, "#/")+1:]
		}
	}
	return ""
}

// Retired reports that the WFM has ended its relationship with this client: asking again is
// useless until an operator acts.
func (p ProblemDetail) Retired() bool {
	return p.fragment() == relationshipRetired ||
		p.Kind() == ProblemNotAuthorized && p.Title == relationshipRetiredTitle
}

// maxRetryAfter caps a server's request: a wrong number must not silence a device for good.
const maxRetryAfter = 24 * time.Hour

// RetryAfter is how long not to ask again after an error answer with this header and problem; 0:
// nothing readable is said. The header wins, in seconds or as a date. A date is compared with the
// server's own present, since the device's clock may be wrong.
func RetryAfter(h http.Header, p ProblemDetail, now time.Time) time.Duration {
	value := strings.TrimSpace(h.Get("Retry-After"))
	switch {
	case value == "":
		return min(time.Duration(max(p.RetryAfterSeconds, 0))*time.Second, maxRetryAfter)
	case strings.Trim(value, "0123456789") == "":
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(maxRetryAfter/time.Second) {
			return maxRetryAfter
		}
		return time.Duration(seconds) * time.Second
	}
	until, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return min(max(until.Sub(now), 0), maxRetryAfter)
}
