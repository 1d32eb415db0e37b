package wfmsim

import (
	"compress/gzip"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

// Names of the endpoints, for faults and for the record.
const (
	EndpointManifest     = "manifest"     // GET /api/v1/deployments
	EndpointDocument     = "document"     // GET /api/v1/deployments/{deploymentId}/{digest}
	EndpointBundle       = "bundle"       // GET /api/v1/bundles/{digest}
	EndpointStatus       = "status"       // POST /api/v1/deployments/{deploymentId}/status
	EndpointCapabilities = "capabilities" // PUT and DELETE /api/v1/capabilities/{deviceId}
	EndpointOther        = "other"        // no endpoint of the standard
	EndpointHandshake    = "handshake"    // the TLS handshake; only fault.Refuse happens there
)

// Bodies and headers.
const (
	maxBody       = 1 << 20
	jsonMediaType = "application/json"
	immutable     = "private, max-age=31536000, immutable"
)

// call is one request on its way through the interface.
type call struct {
	w      http.ResponseWriter
	r      *http.Request
	client string   // who asks
	args   []string // the variable segments of the path
}

// endpoint is one row of the interface.
type endpoint struct {
	name    string
	methods []string
	handle  func(*Server, call) *problem
}

// find gives the row for a path without its prefix, and the variable segments.
// Segments are literal: the standard's names need no escaping and get none.
func find(path string) (endpoint, []string) {
	read := []string{http.MethodGet, http.MethodHead}
	rest, ok := strings.CutPrefix(path, "/api/v1/")
	parts := strings.Split(rest, "/")
	switch {
	case !ok || slices.Contains(parts, ""):
	case len(parts) == 1 && parts[0] == "deployments":
		return endpoint{EndpointManifest, read, (*Server).getManifest}, nil
	case len(parts) == 3 && parts[0] == "deployments" && parts[2] == "status":
		return endpoint{EndpointStatus, []string{http.MethodPost}, (*Server).postStatus}, parts[1:2]
	case len(parts) == 3 && parts[0] == "deployments":
		return endpoint{EndpointDocument, read, (*Server).getDocument}, parts[1:]
	case len(parts) == 2 && parts[0] == "bundles":
		return endpoint{EndpointBundle, read, (*Server).getBundle}, parts[1:]
	case len(parts) >= 2 && parts[0] == "capabilities":
		methods := []string{http.MethodPut, http.MethodDelete}
		return endpoint{EndpointCapabilities, methods, (*Server).capabilities}, []string{strings.Join(parts[1:], "/")}
	}
	return endpoint{EndpointOther, nil, (*Server).nothing}, nil
}

func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	path, mounted := strings.CutPrefix(r.URL.EscapedPath(), s.options.Prefix)
	if !mounted {
		path = ""
	}
	e, args := find(path)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, refusal := s.authorize(r)
		switch {
		case refusal != nil:
		case e.methods != nil && !slices.Contains(e.methods, r.Method):
			w.Header().Set("Allow", strings.Join(e.methods, ", "))
			refusal = blank(http.StatusMethodNotAllowed, "This path answers "+strings.Join(e.methods, " and ")+".")
		default:
			refusal = e.handle(s, call{w: w, r: r, client: client, args: args})
		}
		if refusal != nil {
			s.logger.Info("request refused", "client", client, "method", r.Method, "path", r.URL.Path,
				"status", refusal.status, "detail", refusal.detail, "errors", refusal.errors)
			refusal.answer(w, r, 0)
		}
	})
	s.requests.Wrap(e.name, s.faults.Wrap(e.name, handler)).ServeHTTP(w, r)
}

func (s *Server) nothing(c call) *problem {
	return blank(http.StatusNotFound, "There is nothing at "+c.r.URL.Path+".")
}

func (s *Server) getManifest(c call) *problem {
	if !acceptable(c.r.Header.Values("Accept"), margo.ManifestMediaType) {
		return &problem{
			kind: margo.ProblemCannotGenerateResponse, status: http.StatusNotAcceptable,
			title: "Not Acceptable", detail: "The manifest is available as " + margo.ManifestMediaType + " only.",
		}
	}
	body, etag, err := s.manifest(c.client, wrongDigest(c.r))
	if err != nil {
		return blank(http.StatusInternalServerError, err.Error())
	}
	c.w.Header().Set("Cache-Control", "private")
	c.serve(margo.ManifestMediaType, etag, body)
	return nil
}

// wrongDigest says whether the manifest of this request is to name a document
// that does not exist.
func wrongDigest(r *http.Request) bool {
	return slices.ContainsFunc(fault.Of(r.Context()), func(f fault.Fault) bool { return f.Kind == fault.WrongDigest })
}

func (s *Server) getDocument(c call) *problem {
	id, d := c.args[0], digest.Digest(c.args[1])
	body, ok := s.document(c.client, id, d)
	if !ok {
		return notFound(margo.ProblemDeploymentNotFound, "Deployment Not Found", "There is no revision "+d.String()+" of deployment "+id+".")
	}
	c.w.Header().Set("Cache-Control", immutable)
	if s.options.Gzip {
		c.w.Header().Set("Vary", "Accept-Encoding")
		if acceptsGzip(c.r) {
			return c.serveGzip("application/yaml", quoted(d), body)
		}
	}
	c.serve("application/yaml", quoted(d), body)
	return nil
}

func (s *Server) getBundle(c call) *problem {
	d := digest.Digest(c.args[0])
	body, ok := s.bundleBytes(c.client, d)
	if !ok {
		return notFound(margo.ProblemInvalidBundle, "Bundle Not Found", "There is no bundle "+d.String()+".")
	}
	c.w.Header().Set("Cache-Control", immutable)
	c.serve(margo.BundleMediaType, quoted(d), body)
	return nil
}

func (s *Server) postStatus(c call) *problem {
	body, refusal := c.body()
	if refusal != nil {
		return refusal
	}
	status, err := margo.ParseStatus(body)
	if err != nil {
		return unacceptable(err)
	}
	created, refusal := s.report(c.client, c.args[0], status, body)
	if refusal != nil {
		return refusal
	}
	c.stored(created)
	return nil
}

func (s *Server) capabilities(c call) *problem {
	device := c.args[0]
	if c.r.Method == http.MethodDelete {
		if refusal := s.forget(c.client, device); refusal != nil {
			return refusal
		}
		c.w.WriteHeader(http.StatusNoContent)
		return nil
	}
	body, refusal := c.body()
	if refusal != nil {
		return refusal
	}
	parsed, err := margo.ParseCapabilities(body)
	if err != nil {
		return unacceptable(err)
	}
	created, refusal := s.describe(c.client, device, parsed, body)
	if refusal != nil {
		return refusal
	}
	c.stored(created)
	return nil
}

// body reads what was sent, as far as it is what it should be.
func (c call) body() ([]byte, *problem) {
	mediaType, parameters, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	charset := parameters["charset"]
	if err != nil || mediaType != jsonMediaType || (charset != "" && !strings.EqualFold(charset, "utf-8")) {
		return nil, blank(http.StatusUnsupportedMediaType, "The body has to be "+jsonMediaType+".")
	}
	if encoding := c.r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, blank(http.StatusUnsupportedMediaType, "Request bodies are not to be encoded.")
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	if err != nil {
		return nil, blank(http.StatusRequestEntityTooLarge, fmt.Sprintf("The body cannot be read: %v.", err))
	}
	return body, nil
}

// stored answers a request that left something behind.
func (c call) stored(created bool) {
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	c.w.WriteHeader(status)
}

// serve writes a representation, or 304 where the client has it already.
func (c call) serve(mediaType, etag string, body []byte) {
	c.w.Header().Set("ETag", etag)
	if matches(c.r.Header.Values("If-None-Match"), etag) {
		c.w.WriteHeader(http.StatusNotModified)
		return
	}
	c.w.Header().Set("Content-Type", mediaType)
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(http.StatusOK)
	if c.r.Method != http.MethodHead {
		_, _ = c.w.Write(body)
	}
}

func (c call) serveGzip(mediaType, etag string, body []byte) *problem {
	var packed strings.Builder
	zw := gzip.NewWriter(&packed)
	if _, err := zw.Write(body); err != nil {
		return blank(http.StatusInternalServerError, err.Error())
	}
	if err := zw.Close(); err != nil {
		return blank(http.StatusInternalServerError, err.Error())
	}
	c.w.Header().Set("Content-Encoding", "gzip")
	c.serve(mediaType, etag, []byte(packed.String()))
	return nil
}

func quoted(d digest.Digest) string { return `"` + d.String() + `"` }

// matches says whether an If-None-Match condition holds the tag (RFC 9110, 13.1.2).
func matches(conditions []string, etag string) bool {
	for _, tag := range list(conditions) {
		if tag == "*" || strings.TrimPrefix(tag, "W/") == etag {
			return true
		}
	}
	return false
}

// acceptable says whether Accept allows a media type; without the header
// everything is. The most specific range that fits decides (RFC 9110, 12.5.1).
func acceptable(accept []string, mediaType string) bool {
	ranges := list(accept)
	if len(ranges) == 0 {
		return true
	}
	top, _, _ := strings.Cut(mediaType, "/")
	best, allowed := -1, false
	for _, r := range ranges {
		name, parameters, err := mime.ParseMediaType(r)
		if err != nil {
			continue
		}
		weight := slices.Index([]string{"*/*", top + "/*", mediaType}, name)
		if weight > best {
			best, allowed = weight, !zero(parameters["q"])
		}
	}
	return allowed
}

func acceptsGzip(r *http.Request) bool {
	for _, coding := range list(r.Header.Values("Accept-Encoding")) {
		name, parameters, _ := strings.Cut(coding, ";")
		if strings.TrimSpace(name) == "gzip" {
			return !zero(strings.TrimPrefix(strings.TrimSpace(parameters), "q="))
		}
	}
	return false
}

// zero says whether a quality value is 0: not at all.
func zero(q string) bool {
	value, err := strconv.ParseFloat(q, 64)
	return err == nil && value == 0
}

// list splits header values at their commas.
func list(values []string) []string {
	var items []string
	for _, value := range values {
		for item := range strings.SplitSeq(value, ",") {
			if item = strings.TrimSpace(item); item != "" {
				items = append(items, item)
			}
		}
	}
	return items
}
