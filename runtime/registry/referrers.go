package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Referrers lists what refers to a manifest: what the API of the registry says, or where it has none the index under the
// tag that stands for the manifest (OCI distribution 1.1, "Listing Referrers"). Nothing may refer to it. What the
// registry says is not verified. Errors are those of Resolve.
func (c *Client) Referrers(ctx context.Context, in reference.Named, to digest.Digest) ([]v1.Descriptor, error) {
	ask := c.request(http.MethodGet, in, "referrers/"+to.String(), v1.MediaTypeImageIndex)
	answer, err := c.do(ctx, ask)
	if isWithoutReferrers(err) {
		ask = c.request(http.MethodGet, in, "manifests/"+TagOf(to), v1.MediaTypeImageIndex+", */*")
		if answer, err = c.do(ctx, ask); errdefs.IsNotFound(err) {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	data, err := whole(answer, MaxManifest)
	if err != nil {
		return nil, err
	}
	return referrersIn(data)
}

// TagOf is how a digest is written as a tag.
func TagOf(d digest.Digest) string { return d.Algorithm().String() + "-" + d.Encoded() }

// isWithoutReferrers says that a registry has no such API.
func isWithoutReferrers(err error) bool {
	var status *StatusError
	if !errors.As(err, &status) {
		return false
	}
	switch status.Code {
	case http.StatusNotFound, http.StatusBadRequest, http.StatusMethodNotAllowed:
		return true
	}
	return false
}

// referrersIn reads the index of what refers to something.
func referrersIn(data []byte) ([]v1.Descriptor, error) {
	var index v1.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("%w: cannot read what refers to it: %w", ErrContent, err)
	}
	for n := range index.Manifests {
		m := &index.Manifests[n]
		if err := m.Digest.Validate(); err != nil {
			return nil, fmt.Errorf("%w: cannot read what refers to it: %w", ErrContent, err)
		}
		m.URLs, m.Data = nil, nil
	}
	return index.Manifests, nil
}
