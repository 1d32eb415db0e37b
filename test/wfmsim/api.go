package wfmsim

import (
	"bytes"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
)

// Bodies and headers.
const (
	maxBody       = 1 << 20
	jsonMediaType = "application/json"
)

// call is one request on its way through the interface.
type call struct {
	w      http.ResponseWriter
	r      *http.Request
	client string   // who asks
	args   []string // the variable segments of the path
}

// path is that of a request without the prefix of the interface.
func (s *Server) path(r *http.Request) string {
	path, mounted := strings.CutPrefix(r.URL.EscapedPath(), s.options.Prefix)
	if !mounted {
		return ""
	}
	return path
}

func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	at := s.find(s.path(r))
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, refusal := s.authorize(r, at)
		switch {
		case refusal != nil:
		case at.methods != nil && !slices.Contains(at.methods, r.Method):
			w.Header().Set("Allow", strings.Join(at.methods, ", "))
			refusal = blank(http.StatusMethodNotAllowed, "This path answers "+strings.Join(at.methods, " and ")+".")
		default:
			s.bind(client, at, r)
			refusal = at.handle(s, call{w: w, r: r, client: client, args: at.args})
		}
		if refusal != nil {
			s.logger.Info("request refused", "client", client, "method", r.Method, "path", r.URL.Path,
				"status", refusal.status, "detail", refusal.detail, "errors", refusal.errors)
			s.refuse(w, r, refusal, 0)
		}
	})
	s.Wrap(at.name, handler).ServeHTTP(w, r)
}

// bind decides what the device of a client is called with the client's first request.
func (s *Server) bind(client string, at place, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.bound[client]; known || client == "" {
		return
	}
	s.bound[client] = client
	if at.name == EndpointCapabilities && r.Method == http.MethodPut {
		s.bound[client] = strings.Join(at.args, "")
	}
}

func (s *Server) nothing(c call) *problem {
	return blank(http.StatusNotFound, "There is nothing at "+c.r.URL.Path+".")
}

func (s *Server) getManifest(c call) *problem {
	literal := !s.options.Quirks.LiteralAccept || c.r.Header.Get("Accept") == margo.ManifestMediaType
	if !literal || !acceptable(c.r.Header.Values("Accept"), margo.ManifestMediaType) {
		return &problem{
			kind: margo.ProblemCannotGenerateResponse, status: http.StatusNotAcceptable,
			title: "Not Acceptable", detail: "The manifest is available as " + margo.ManifestMediaType + " only.",
		}
	}
	body, etag, err := s.manifest(c.client)
	if err != nil {
		return blank(http.StatusInternalServerError, err.Error())
	}
	c.w.Header().Set("Cache-Control", "private")
	c.serve(margo.ManifestMediaType, etag, body)
	return nil
}

// artifact serves what never changes.
func (s *Server) artifact(c call, mediaType string, d digest.Digest, body []byte) *problem {
	audience := "public"
	if s.options.Revision == margo.RC3 {
		audience = "private"
	}
	c.w.Header().Set("Cache-Control", audience+", max-age=31536000, immutable")
	if s.options.Quirks.BareArtifacts {
		c.w = bare{c.w}
	}
	c.serve(mediaType, quoted(d), body)
	return nil
}

func (s *Server) getDocument(c call) *problem {
	id, d := c.args[0], digest.Digest(c.args[1])
	body, ok := s.document(c.client, id, d)
	if !ok {
		return notFound(margo.ProblemDeploymentNotFound, "Deployment Not Found", "There is no revision "+d.String()+" of deployment "+id+".")
	}
	return s.artifact(c, "application/yaml", d, s.options.Quirks.single(body))
}

func (s *Server) getBundle(c call) *problem {
	d := digest.Digest(c.args[0])
	body, ok := s.bundleBytes(c.client, d)
	if !ok {
		return notFound(margo.ProblemInvalidBundle, "Bundle Not Found", "There is no bundle "+d.String()+".")
	}
	return s.artifact(c, margo.BundleMediaType, d, body)
}

func (s *Server) postStatus(c call) *problem {
	body, refusal := c.body()
	if refusal != nil {
		return refusal
	}
	body = s.options.Quirks.status(body)
	status, refusal := s.parseStatus(body)
	if refusal != nil {
		return refusal
	}
	created, refusal := s.report(c.client, c.args[0], status, body)
	if refusal != nil {
		return refusal
	}
	s.stored(c, created && s.options.Revision == margo.RC3)
	return nil
}

func (s *Server) capabilities(c call) *problem {
	device := strings.Join(c.args, "") // the path of rc.1 has none
	if c.r.Method == http.MethodDelete && s.options.Quirks.KeepsDevices {
		return blank(http.StatusMethodNotAllowed, "There is no handler for it.")
	}
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
	id, refusal := s.parseCapabilities(body)
	if refusal != nil {
		return refusal
	}
	if s.options.Revision == margo.RC1 {
		device = id
	}
	if s.options.Quirks.ClientIDAsDevice && device != c.client {
		return &problem{status: http.StatusBadRequest, title: "Bad Request", detail: "device ID mismatch"}
	}
	known := c.r.Method != http.MethodPut || s.options.Revision == margo.RC3 || s.options.Quirks.PutFirst
	created, refusal := s.describe(c.client, device, id, body, known)
	if refusal != nil {
		return refusal
	}
	s.stored(c, created || s.options.Revision != margo.RC3 || s.options.Quirks.CreatesAlways)
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
	return readBody(c.r)
}

// stored answers a request that left something behind.
func (s *Server) stored(c call, created bool) {
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	c.w.WriteHeader(status)
}

// serve writes a representation, parts of it where they are asked for, or 304
// where the client has it already (RFC 9110, 13 and 14).
func (c call) serve(mediaType, etag string, body []byte) {
	c.w.Header().Set("ETag", etag)
	c.w.Header().Set("Content-Type", mediaType)
	http.ServeContent(c.w, c.r, "", time.Time{}, bytes.NewReader(body))
}

func quoted(d digest.Digest) string { return `"` + d.String() + `"` }

// acceptable says whether Accept names a media type, or all of its kind; without the
// header everything is acceptable. Nobody names a type that is not (a quality of 0).
func acceptable(accept []string, mediaType string) bool {
	all := strings.Join(accept, ",")
	if all == "" {
		return true
	}
	top, _, _ := strings.Cut(mediaType, "/")
	for item := range strings.SplitSeq(all, ",") {
		name, _, err := mime.ParseMediaType(item)
		if err == nil && slices.Contains([]string{"*/*", top + "/*", mediaType}, name) {
			return true
		}
	}
	return false
}
