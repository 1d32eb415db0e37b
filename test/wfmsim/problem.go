package wfmsim

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/serving"
)

// problem is an answer that is no success. Its zero type is about:blank.
type problem struct {
	kind   margo.ProblemKind
	status int
	title  string
	detail string
	errors []margo.FieldError

	gateway bool // said by what stands before the WFM, which knows nothing of Margo
}

func notAuthorized(title, detail string) *problem {
	return &problem{kind: margo.ProblemNotAuthorized, status: http.StatusForbidden, title: title, detail: detail}
}

// blank is for what no registered type describes.
func blank(status int, detail string) *problem {
	title := cmp.Or(http.StatusText(status), "Error") // a status may be one that nobody registered
	return &problem{status: status, title: title, detail: detail}
}

func invalid(detail string) *problem {
	return &problem{kind: margo.ProblemInvalidRequest, status: http.StatusBadRequest, title: "Invalid Request", detail: detail}
}

func notFound(kind margo.ProblemKind, title, detail string) *problem {
	return &problem{kind: kind, status: http.StatusNotFound, title: title, detail: detail}
}

func semantic(field, message string) *problem {
	return &problem{
		kind: margo.ProblemSemanticError, status: http.StatusUnprocessableEntity,
		title: "Semantic Error", detail: "The request body contradicts the standard or the state of this WFM.",
		errors: []margo.FieldError{{Field: field, Message: message}},
	}
}

// unacceptable turns what a strict parser found into a problem: 400 where the
// body as a whole is not the document it should be, 422 where the parser found
// its way in it and what it read is wrong.
func unacceptable(err error) *problem {
	p := &problem{
		kind: margo.ProblemInvalidRequest, status: http.StatusBadRequest,
		title: "Invalid Request", detail: err.Error(),
	}
	var violations margo.Errors
	if !errors.As(err, &violations) {
		return p
	}
	inside := true
	for _, v := range violations {
		inside = inside && v.Path != ""
		message := v.Message
		if v.Requirement != "" {
			message += " [" + v.Requirement + "]"
		}
		p.errors = append(p.errors, margo.FieldError{Field: fieldPath(v.Path), Message: message})
	}
	if inside {
		p.kind, p.status, p.title = margo.ProblemSemanticError, http.StatusUnprocessableEntity, "Semantic Error"
	}
	return p
}

// fieldPath writes a JSON Pointer in the dotted form of the standard's examples.
func fieldPath(pointer string) string {
	return strings.ReplaceAll(strings.TrimPrefix(pointer, "/"), "/", ".")
}

// refuse writes the problem, in the manner of the revision.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, p *problem, retryAfter int) {
	switch {
	case p.gateway:
		w.Header().Add("WWW-Authenticate", `Basic realm="gateway"`)
		w.Header().Add("WWW-Authenticate", `Bearer realm="gateway"`)
		http.Error(w, p.detail, p.status)
	case s.options.Quirks.ErrorMember:
		serving.Answer(w, p.status, jsonMediaType, map[string]string{"Error": strings.TrimSuffix(p.title+": "+p.detail, ": ")})
	case s.options.Revision == margo.RC3:
		serving.Answer(w, p.status, margo.ProblemMediaType, p.document(r, retryAfter))
	default:
		serving.Answer(w, p.status, jsonMediaType, struct {
			Error   string             `json:"error"`
			Message string             `json:"message,omitempty"`
			Errors  []margo.FieldError `json:"errors,omitempty"`
		}{p.title, p.detail, p.errors})
	}
}

// document is the problem as RFC 9457 has it.
func (p *problem) document(r *http.Request, retryAfter int) margo.ProblemDetail {
	detail := margo.ProblemDetail{
		Type: "about:blank", Title: p.title, Status: p.status, Detail: p.detail,
		Instance: r.URL.EscapedPath(), Backoff: margo.BackoffNone, Errors: p.errors,
	}
	if p.kind != "" {
		detail.Type = margo.ProblemBase + string(p.kind)
	}
	switch p.status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInternalServerError:
		detail.Retryable, detail.Backoff, detail.RetryAfterSeconds = true, margo.BackoffExponential, retryAfter
	}
	return detail
}

// problemOf describes a status that is answered on demand by the type that the
// standard registers for it at that endpoint.
func problemOf(status int, path string) *problem {
	const injected = "Injected fault."
	p := blank(status, injected)
	switch {
	case status == http.StatusBadRequest:
		p.kind = margo.ProblemInvalidRequest
	case status == http.StatusForbidden:
		p.kind = margo.ProblemNotAuthorized
	case status == http.StatusUnprocessableEntity:
		p.kind = margo.ProblemSemanticError
		p.errors = []margo.FieldError{{Field: "injected", Message: injected}}
	case status == http.StatusNotAcceptable:
		p.kind = margo.ProblemCannotGenerateResponse
	case status == http.StatusNotFound && strings.Contains(path, "/bundles/"):
		p.kind = margo.ProblemInvalidBundle
	case status == http.StatusNotFound && strings.Contains(path, "/deployments/") && !strings.HasSuffix(path, "/status"):
		p.kind = margo.ProblemDeploymentNotFound
	}
	return p
}

func (s *Server) answerFault(w http.ResponseWriter, r *http.Request, f fault.Fault) {
	// With 429 and 503 the header is not optional.
	after := f.RetryAfter
	if after == "" && (f.Status == http.StatusTooManyRequests || f.Status == http.StatusServiceUnavailable) {
		after = "1"
	}
	if after != "" && after != fault.NoRetryAfter {
		w.Header().Set("Retry-After", after)
	}
	if f.Status < 400 {
		w.WriteHeader(f.Status)
		return
	}
	seconds, err := strconv.Atoi(after)
	if err != nil {
		seconds = 1 // advisory beside a date
	}
	p := problemOf(f.Status, r.URL.Path)
	p.kind = cmp.Or(margo.ProblemKind(f.What), p.kind)
	p.title = cmp.Or(f.Value, p.title)
	s.refuse(w, r, p, seconds)
}
