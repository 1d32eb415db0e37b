package cosign

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
)

// The media types of what is signed: of payloads of simple signing, and of bundles.
const (
	SimpleType = "application/vnd.dev.cosign.simplesigning.v1+json"
	BundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
)

// SignatureAnnotation is where the manifest has the signature of a payload of simple signing, in base64.
const SignatureAnnotation = "dev.cosignproject.cosign/signature"

// What bundles say about themselves, and what is in those of `cosign sign`: an attestation is not a signature, even by
// the same key.
const (
	PredicateAnnotation = "dev.sigstore.bundle.predicateType"
	SignPredicate       = "https://sigstore.dev/cosign/sign/v1"

	simpleKind    = "cosign container image signature"
	statementType = "https://in-toto.io/Statement/v1"
	payloadType   = "application/vnd.in-toto+json"
)

const maxSubjects = 64

// The reasons why a signature does not count.
var (
	ErrOtherKey   = errors.New("no trusted key made it")
	ErrOtherImage = errors.New("it is for another image")
)

// Signature is one that nobody has verified yet.
type Signature struct {
	images    []digest.Digest // that it is of
	message   []byte          // that was signed
	signature []byte
}

// Verify returns the id of the key that signed an image: the one of keys whose signature of the digest it is. The error
// is one of those above.
func (s Signature) Verify(image digest.Digest, keys Keys) (id string, err error) {
	if !slices.Contains(s.images, image) {
		return "", ErrOtherImage
	}
	for _, k := range keys.keys {
		if k.signed(s.message, s.signature) {
			return k.id, nil
		}
	}
	return "", ErrOtherKey
}

// ParseSimple reads a payload of simple signing, and its signature in base64.
func ParseSimple(payload []byte, signature string) (Signature, error) {
	var claim struct {
		Critical struct {
			Type  string `json:"type"`
			Image struct {
				Digest digest.Digest `json:"docker-manifest-digest"`
			} `json:"image"`
		} `json:"critical"`
	}
	if err := json.Unmarshal(payload, &claim); err != nil {
		return Signature{}, fmt.Errorf("cannot read signature: %w", err)
	}
	if claim.Critical.Type != simpleKind {
		return Signature{}, fmt.Errorf("cannot read signature: it is of type %.80q", claim.Critical.Type)
	}
	if err := claim.Critical.Image.Digest.Validate(); err != nil {
		return Signature{}, fmt.Errorf("cannot read signature: docker-manifest-digest: %w", err)
	}
	raw, err := base64.StdEncoding.DecodeString(signature)
	if err != nil || len(raw) == 0 {
		return Signature{}, errors.New("cannot read signature: it is not base64")
	}
	return Signature{[]digest.Digest{claim.Critical.Image.Digest}, payload, raw}, nil
}

// ParseBundle reads a Sigstore bundle. Who it says has signed does not matter: the keys tell.
func ParseBundle(data []byte) (Signature, error) {
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
		return Signature{}, fmt.Errorf("cannot read bundle: %w", err)
	}
	e := bundle.Envelope
	switch {
	case e == nil:
		return Signature{}, errors.New("cannot read bundle: it has no DSSE envelope")
	case e.Type != payloadType:
		return Signature{}, fmt.Errorf("cannot read bundle: its payload is of type %.80q", e.Type)
	case len(e.Signatures) != 1 || len(e.Signatures[0].Signature) == 0:
		return Signature{}, fmt.Errorf("cannot read bundle: it has %d signatures, expected one", len(e.Signatures))
	}
	images, err := subjectsOf(e.Payload)
	if err != nil {
		return Signature{}, fmt.Errorf("cannot read bundle: %w", err)
	}
	// What DSSE signs: https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
	message := fmt.Appendf(nil, "DSSEv1 %d %s %d ", len(e.Type), e.Type, len(e.Payload))
	return Signature{images, append(message, e.Payload...), e.Signatures[0].Signature}, nil
}

// subjectsOf are the images that an in-toto statement of `cosign sign` is about.
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
