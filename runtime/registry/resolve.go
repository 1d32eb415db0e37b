package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// MaxManifest is how many bytes a manifest or an index may have, as registries limit them.
const MaxManifest = 4 << 20

// Resolve describes the manifest or index that a reference with a tag or a digest stands for now. A tag is believed to
// the registry. Errors are a *StatusError, an ErrContent, an ErrOld, an ErrPage, an ErrDenied, those of the credentials, or
// those of the way there.
func (c *Client) Resolve(ctx context.Context, ref reference.Named) (v1.Descriptor, error) {
	var object string
	var wanted digest.Digest
	switch r := ref.(type) {
	case reference.Canonical:
		wanted = r.Digest()
		object = wanted.String()
	case reference.Tagged:
		object = r.Tag()
	default:
		return v1.Descriptor{}, fmt.Errorf("%s has neither a tag nor a digest: %w", ref, ErrContent)
	}
	// Registries that count downloads do not count this.
	ask := c.request(http.MethodHead, ref, "manifests/"+object, manifests)
	answer, err := c.do(ctx, ask)
	if refused := (*StatusError)(nil); errors.As(err, &refused) && refused.Code == http.StatusForbidden && ask.method == http.MethodHead {
		ask.method = http.MethodGet // which tells why
		answer, err = c.do(ctx, ask)
	}
	if err != nil {
		return v1.Descriptor{}, err
	}
	if ask.method == http.MethodHead {
		desc := v1.Descriptor{MediaType: typeOf(answer), Digest: wanted, Size: answer.ContentLength}
		answer.Body.Close()
		if desc.Digest == "" {
			desc.Digest = digest.Digest(answer.Header.Get("Docker-Content-Digest"))
		}
		if desc.Digest != "" && desc.Size >= 0 {
			return desc, check(desc)
		}
		ask.method = http.MethodGet
		if answer, err = c.do(ctx, ask); err != nil {
			return v1.Descriptor{}, err
		}
	}
	data, err := whole(answer, MaxManifest)
	if err != nil {
		return v1.Descriptor{}, err
	}
	desc := v1.Descriptor{MediaType: typeOf(answer), Digest: wanted, Size: int64(len(data))}
	if desc.Digest == "" {
		desc.Digest = digest.FromBytes(data)
	}
	return desc, check(desc)
}

// check refuses what cannot be the description of a manifest.
func check(desc v1.Descriptor) error {
	if err := desc.Digest.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrContent, err)
	}
	if isOld(desc.MediaType) {
		return fmt.Errorf("%w: it is of type %q", ErrOld, desc.MediaType)
	}
	return nil
}

// whole reads an answer to its end.
func whole(answer *http.Response, limit int64) ([]byte, error) {
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%w: it is bigger than %d bytes", ErrContent, limit)
	}
	return data, nil
}
