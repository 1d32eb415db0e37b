// Package registry is an OCI registry for trials and tests: images and Compose
// components are pushed to it and pulled from it over plain HTTP.
//
// The distribution protocol is go-containerregistry's. Before it lies a layer
// that adds what a device on a bad line meets: blobs are served with ranges, as
// real registries do and that one does not for the open range by which a broken
// download is continued; requests can be made to fail (package fault) and are
// remembered (package record).
//
// With a directory the content survives a restart of the program; without one it
// survives Close and Start.
package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	upstream "github.com/google/go-containerregistry/pkg/registry"
	ggcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/record"
	"github.com/margolite/margolite/test/wfmsim/serving"
)

// Names of the endpoints, for faults and for the record.
const (
	EndpointPing     = "ping"     // /v2/
	EndpointManifest = "manifest" // /v2/<name>/manifests/<reference>
	EndpointBlob     = "blob"     // /v2/<name>/blobs/<digest>
	EndpointUpload   = "upload"   // /v2/<name>/blobs/uploads/...
	EndpointOther    = "other"    // tags, catalogue
)

// maxManifest bounds a manifest that is pushed. The distribution specification
// asks registries for at least 4 MiB.
const maxManifest = 4 << 20

// Options of a registry. The zero value keeps everything in memory.
type Options struct {
	Dir string // where blobs and manifests are kept; empty: in memory
}

// Registry is one registry. Its address is what image references name, and its content
// stays when it is closed.
type Registry struct {
	*serving.Server

	options  Options
	blobs    upstream.BlobHandler
	upstream http.Handler
}

// New makes a registry; Start opens it.
func New(o Options) (*Registry, error) {
	r := &Registry{options: o, blobs: upstream.NewInMemoryBlobHandler()}
	if o.Dir != "" {
		if err := os.MkdirAll(r.manifestDir(), 0o755); err != nil {
			return nil, fmt.Errorf("cannot create registry: %w", err)
		}
		r.blobs = upstream.NewDiskBlobHandler(o.Dir)
	}
	r.upstream = upstream.New(upstream.WithBlobHandler(r.blobs), upstream.Logger(log.New(io.Discard, "", 0)))
	r.Server = serving.New(serving.Options{
		Handler: r.route,
		Faults:  fault.Options{Answer: answer},
		Record:  record.Options{Header: []string{"Range", "Accept", "User-Agent"}},
	})
	return r, r.restore()
}

// URL is the registry as a browser would name it.
func (r *Registry) URL() string { return "http://" + r.Address() }

// route finds the endpoint and puts memory and faults before its handler.
func (r *Registry) route(w http.ResponseWriter, request *http.Request) {
	endpoint, handler := EndpointOther, r.upstream
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	kind := ""
	if len(parts) >= 4 {
		kind = parts[len(parts)-2]
	}
	switch read := request.Method == http.MethodGet || request.Method == http.MethodHead; {
	case request.URL.Path == "/v2/" || request.URL.Path == "/v2":
		endpoint = EndpointPing
	case kind == "uploads", kind == "blobs" && parts[len(parts)-1] == "uploads":
		endpoint = EndpointUpload
	case kind == "blobs" && read:
		endpoint, handler = EndpointBlob, http.HandlerFunc(r.blob)
	case kind == "blobs":
		endpoint = EndpointBlob
	case kind == "manifests" && request.Method == http.MethodPut:
		endpoint, handler = EndpointManifest, http.HandlerFunc(r.putManifest)
	case kind == "manifests":
		endpoint = EndpointManifest
	}
	r.Wrap(endpoint, handler).ServeHTTP(w, request)
}

// blob serves a blob with HEAD, ranges and conditions.
func (r *Registry) blob(w http.ResponseWriter, request *http.Request) {
	name := request.URL.Path[strings.LastIndex(request.URL.Path, "/")+1:]
	hash, err := ggcr.NewHash(name)
	if err != nil {
		refuse(w, http.StatusBadRequest, "DIGEST_INVALID", err.Error())
		return
	}
	content, err := r.blobs.Get(request.Context(), "", hash)
	switch {
	case errors.Is(err, upstream.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		refuse(w, http.StatusNotFound, "BLOB_UNKNOWN", "there is no blob "+name)
		return
	case err != nil:
		refuse(w, http.StatusInternalServerError, "UNKNOWN", err.Error())
		return
	}
	defer content.Close()
	seeker, ok := content.(io.ReadSeeker)
	if !ok {
		refuse(w, http.StatusInternalServerError, "UNKNOWN", "the blob store cannot seek")
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Docker-Content-Digest", hash.String())
	w.Header().Set("ETag", `"`+hash.String()+`"`)
	http.ServeContent(w, request, "", time.Time{}, seeker)
}

// putManifest hands a manifest on and, once it is accepted, keeps it on disk.
func (r *Registry) putManifest(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxManifest))
	if err != nil {
		refuse(w, http.StatusRequestEntityTooLarge, "SIZE_INVALID", err.Error())
		return
	}
	kept := manifest{Path: request.URL.Path, ContentType: request.Header.Get("Content-Type"), Body: body}
	answer, err := r.push(kept)
	if err != nil {
		refuse(w, http.StatusBadRequest, "NAME_INVALID", err.Error())
		return
	}
	if answer.Code == http.StatusCreated && r.options.Dir != "" {
		if err := r.keep(kept); err != nil {
			refuse(w, http.StatusInternalServerError, "UNKNOWN", err.Error())
			return
		}
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// manifest is a manifest as it was pushed.
type manifest struct {
	Path        string `json:"path"`
	ContentType string `json:"contentType"`
	Body        []byte `json:"body"`
}

// push hands a manifest to the upstream registry, and holds its answer back.
func (r *Registry) push(m manifest) (*httptest.ResponseRecorder, error) {
	request, err := http.NewRequest(http.MethodPut, m.Path, bytes.NewReader(m.Body))
	if err != nil {
		return nil, fmt.Errorf("cannot push manifest %s: %w", m.Path, err)
	}
	request.Header.Set("Content-Type", m.ContentType)
	answer := httptest.NewRecorder()
	r.upstream.ServeHTTP(answer, request)
	return answer, nil
}

func (r *Registry) manifestDir() string { return filepath.Join(r.options.Dir, "manifests") }

// keep writes a manifest to disk, under the name it was pushed with and under
// its digest: a tag that moves leaves the manifest it named before within reach.
func (r *Registry) keep(m manifest) error {
	byDigest := m
	byDigest.Path = m.Path[:strings.LastIndex(m.Path, "/")+1] + digest.FromBytes(m.Body).String()
	for _, m := range []manifest{m, byDigest} {
		text, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("cannot keep manifest: %w", err)
		}
		name := filepath.Join(r.manifestDir(), digest.FromString(m.Path).Encoded()+".json")
		if err := store.ReplaceFile(name, 0o644, bytes.NewReader(text)); err != nil {
			return fmt.Errorf("cannot keep manifest: %w", err)
		}
	}
	return nil
}

// restore pushes again what an earlier process kept.
func (r *Registry) restore() error {
	if r.options.Dir == "" {
		return nil
	}
	names, err := filepath.Glob(filepath.Join(r.manifestDir(), "*.json"))
	if err != nil {
		return fmt.Errorf("cannot restore registry: %w", err)
	}
	var waiting []manifest
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("cannot restore registry: %w", err)
		}
		var m manifest
		if err := json.Unmarshal(text, &m); err != nil {
			return fmt.Errorf("cannot restore registry: %s: %w", name, err)
		}
		waiting = append(waiting, m)
	}
	// An index is accepted only after the manifests it names, and indexes may
	// be nested: go round for as long as that gets any further.
	for len(waiting) > 0 {
		var refused []manifest
		for _, m := range waiting {
			answer, err := r.push(m)
			if err != nil {
				return fmt.Errorf("cannot restore registry: %w", err)
			}
			if answer.Code != http.StatusCreated {
				refused = append(refused, m)
			}
		}
		if len(refused) == len(waiting) {
			return fmt.Errorf("cannot restore registry: manifest %s was refused", refused[0].Path)
		}
		waiting = refused
	}
	return nil
}

// answer writes the answer of an injected fault.
func answer(w http.ResponseWriter, _ *http.Request, f fault.Fault) {
	if f.RetryAfter != "" {
		w.Header().Set("Retry-After", f.RetryAfter)
	}
	codes := map[int]string{
		http.StatusUnauthorized:    "UNAUTHORIZED",
		http.StatusForbidden:       "DENIED",
		http.StatusNotFound:        "NAME_UNKNOWN",
		http.StatusTooManyRequests: "TOOMANYREQUESTS",
	}
	code := codes[f.Status]
	if code == "" {
		code = "UNKNOWN"
	}
	refuse(w, f.Status, code, "injected fault")
}

// refuse writes an error document of the distribution specification.
func refuse(w http.ResponseWriter, status int, code, message string) {
	type entry struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	serving.Answer(w, status, "application/json", map[string][]entry{"errors": {{code, message}}})
}
