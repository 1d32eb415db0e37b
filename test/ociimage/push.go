package ociimage

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
)

// Registry is where artifacts are pushed to.
type Registry struct {
	URL string // http://127.0.0.1:5000
	// User and Password are sent with every request where User is set.
	User, Password string
}

// Push uploads the artifact and gives it a tag. It uploads what the registry
// does not have yet and nothing else.
func (r Registry) Push(ctx context.Context, repository, tag string, a *Artifact) error {
	if err := r.push(ctx, repository, tag, a); err != nil {
		return fmt.Errorf("cannot push %s:%s to %s: %w", repository, tag, r.URL, err)
	}
	return nil
}

func (r Registry) push(ctx context.Context, repository, tag string, a *Artifact) error {
	for _, part := range a.Parts {
		if err := r.push(ctx, repository, part.Digest.String(), part); err != nil {
			return err
		}
	}
	for _, d := range slices.Sorted(maps.Keys(a.Blobs)) {
		if err := r.PushBlob(ctx, repository, a.Blobs[d]); err != nil {
			return err
		}
	}
	_, err := r.call(ctx, http.MethodPut, r.path(repository, "manifests", tag), a.MediaType, a.Manifest, http.StatusCreated)
	return err
}

// PushBlob uploads a blob, unless the registry has it.
func (r Registry) PushBlob(ctx context.Context, repository string, blob []byte) error {
	d := digest.FromBytes(blob)
	if _, err := r.call(ctx, http.MethodHead, r.path(repository, "blobs", d.String()), "", nil, http.StatusOK); err == nil {
		return nil
	}
	// Two requests: a registry may refuse the upload in one.
	answer, err := r.call(ctx, http.MethodPost, r.path(repository, "blobs", "uploads")+"/", "", nil, http.StatusAccepted)
	if err != nil {
		return err
	}
	location, err := answer.Location()
	if err != nil {
		return fmt.Errorf("no upload location: %w", err)
	}
	query := location.Query()
	query.Set("digest", d.String())
	location.RawQuery = query.Encode()
	_, err = r.call(ctx, http.MethodPut, location.String(), "application/octet-stream", blob, http.StatusCreated)
	return err
}

func (r Registry) path(repository, kind, name string) string {
	return strings.TrimSuffix(r.URL, "/") + "/v2/" + repository + "/" + kind + "/" + name
}

// call makes one request; its answer's body is read and closed.
func (r Registry) call(ctx context.Context, method, target, contentType string, body []byte, want int) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	// A registry that is told to cut the connection of a HEAD does it when the answer
	// is already here; an upload that follows on the same one would fail.
	request.Close = method == http.MethodHead
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	if r.User != "" {
		request.SetBasicAuth(r.User, r.Password)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 4096))
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != want {
		return nil, fmt.Errorf("%s %s answered %s: %s", method, request.URL.Path, answer.Status, text)
	}
	return answer, nil
}
