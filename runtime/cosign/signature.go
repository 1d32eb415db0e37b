package cosign

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// The media types of payloads of simple signing, and of bundles.
const (
	SimpleType = "application/vnd.dev.cosign.simplesigning.v1+json"
	BundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
)

// signatureAnnotation has the signature of a simple signing payload, in base64.
const signatureAnnotation = "dev.cosignproject.cosign/signature"

// Types in bundles of `cosign sign`: an attestation is not a signature, even by the same key.
const (
	PredicateAnnotation = "dev.sigstore.bundle.predicateType"
	SignPredicate       = "https://sigstore.dev/cosign/sign/v1"

	simpleKind    = "cosign container image signature"
	statementType = "https://in-toto.io/Statement/v1"
	payloadType   = "application/vnd.in-toto+json"
)

const maxSubjects = 64

var (
	ErrOtherKey   = errors.New("no trusted key made it")
	ErrOtherImage = errors.New("it is for another image")
)

// signature is an unverified signature.
type signature struct {
	images    []digest.Digest // that it is of
	message   []byte          // that was signed
	signature []byte
}

// Verify returns the id of the key in k that signed an image, given the payload of a layer of
// SimpleType or BundleType. The error says why the signature does not count.
func (k Keys) Verify(layer v1.Descriptor, payload []byte, image digest.Digest) (id string, err error) {
	var s signature
	if layer.MediaType == BundleType {
		s, err = parseBundle(payload)
	} else {
		s, err = parseSimple(payload, layer.Annotations[signatureAnnotation])
	}
	if err != nil {
		return "", err
	}
	if !slices.Contains(s.images, image) {
		return "", ErrOtherImage
	}
	for _, key := range k.keys {
		if key.signed(s.message, s.signature) {
			return key.id, nil
		}
	}
	return "", ErrOtherKey
}

func parseSimple(payload []byte, encoded string) (signature, error) {
	var claim struct {
		Critical struct {
			Type  string `json:"type"`
			Image struct {
				Digest digest.Digest `json:"docker-manifest-digest"`
			} `json:"image"`
		} `json:"critical"`
	}
	if err := json.Unmarshal(payload, &claim); err != nil {
		return signature{}, fmt.Errorf("cannot read signature: %w", err)
	}
	if claim.Critical.Type != simpleKind {
		return signature{}, fmt.Errorf("cannot read signature: it is of type %.80q", claim.Critical.Type)
	}
	if err := claim.Critical.Image.Digest.Validate(); err != nil {
		return signature{}, fmt.Errorf("cannot read signature: docker-manifest-digest: %w", err)
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(raw) == 0 {
		return signature{}, errors.New("cannot read signature: it is not base64")
	}
	return signature{[]digest.Digest{claim.Critical.Image.Digest}, payload, raw}, nil
}

// parseBundle parses a Sigstore bundle. Its claim of who signed is ignored: the keys decide.
func parseBundle(data []byte) (signature, error) {
	var bundle struct {
		Envelope *struct {
			Payload    []byte `json:"payload"`
			Type       string `json:"payloadType"`
			Signatures []struct {
				Signature []byte `json:"sig"`
			} `json:"signatures"`
		} `json:"dsseEnvelope"`
	}
	if err := json.Unmarshal(data, &bundle); err != nil {
		return signature{}, fmt.Errorf("cannot read bundle: %w", err)
	}
	e := bundle.Envelope
	switch {
	case e == nil:
		return signature{}, errors.New("cannot read bundle: it has no DSSE envelope")
	case e.Type != payloadType:
		return signature{}, fmt.Errorf("cannot read bundle: its payload is of type %.80q", e.Type)
	case len(e.Signatures) != 1 || len(e.Signatures[0].Signature) == 0:
		return signature{}, fmt.Errorf("cannot read bundle: it has %d signatures, expected one", len(e.Signatures))
	}
	images, err := subjectsOf(e.Payload)
	if err != nil {
		return signature{}, fmt.Errorf("cannot read bundle: %w", err)
	}
	// What DSSE signs: https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
	message := fmt.Appendf(nil, "DSSEv1 %d %s %d ", len(e.Type), e.Type, len(e.Payload))
	return signature{images, append(message, e.Payload...), e.Signatures[0].Signature}, nil
}

// subjectsOf are the images in an in-toto statement of `cosign sign`.
func subjectsOf(data []byte) ([]digest.Digest, error) {
	var statement struct {
		Type      string `json:"_type"`
		Predicate string `json:"predicateType"`
		Subjects  []struct {
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
	}
	if err := json.Unmarshal(data, &statement); err != nil {
		return nil, err
	}
	switch {
	case statement.Type != statementType:
		return nil, fmt.Errorf("its statement is of type %.80q", statement.Type)
	case statement.Predicate != SignPredicate:
		return nil, fmt.Errorf("it attests %.80q and is not an image signature", statement.Predicate)
	case len(statement.Subjects) > maxSubjects:
		return nil, fmt.Errorf("it lists more than %d images", maxSubjects)
	}
	var images []digest.Digest
	for _, s := range statement.Subjects {
		for algorithm, encoded := range s.Digest {
			if d := digest.NewDigestFromEncoded(digest.Algorithm(algorithm), encoded); d.Validate() == nil {
				images = append(images, d)
			}
		}
	}
	if len(images) == 0 {
		return nil, errors.New("it lists no image")
	}
	return images, nil
}
