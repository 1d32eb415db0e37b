// Package cosigned signs images for tests, as `cosign sign --key` does: versions 1 and 2 with a payload of simple
// signing under a tag (https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md), version 3 with a Sigstore
// bundle that refers to the image (https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md).
package cosigned

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/ociimage"
)

// Media types of what is signed.
const (
	simpleType = "application/vnd.dev.cosign.simplesigning.v1+json"
	bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
)

// Key signs.
type Key struct {
	private crypto.Signer
	own     crypto.Hash // that bundles are signed over
}

// NewKey makes a key of a kind: see NewSigner.
func NewKey(kind string) (*Key, error) {
	private, err := NewSigner(kind)
	own, known := map[string]crypto.Hash{"p384": crypto.SHA384, "ed25519": 0, "ed25519ph": crypto.SHA512}[kind]
	if !known {
		own = crypto.SHA256
	}
	return &Key{private, own}, err
}

// NewSigner makes the private half: p256, p384, p521, ed25519, ed25519ph, rsa2048, rsa3072, rsa4096.
func NewSigner(kind string) (key crypto.Signer, err error) {
	switch kind {
	case "p256":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "p384":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "p521":
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ed25519", "ed25519ph":
		_, key, err = ed25519.GenerateKey(rand.Reader)
		return key, err
	case "rsa2048", "rsa3072", "rsa4096":
		bits, _ := strconv.Atoi(kind[len("rsa"):])
		return rsa.GenerateKey(rand.Reader, bits)
	}
	return nil, fmt.Errorf("cannot make key: no kind of key is %q", kind)
}

// Public is the public key in PEM, as in cosign.pub.
func (k *Key) Public() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(k.private.Public())
	if err != nil {
		return nil, fmt.Errorf("cannot write public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// Private is the private key in PEM.
func (k *Key) Private() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k.private)
	if err != nil {
		return nil, fmt.Errorf("cannot write private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// sign signs a message over its hash; 0: over itself.
func (k *Key) sign(message []byte, over crypto.Hash) ([]byte, error) {
	signed := message
	switch over {
	case crypto.SHA256:
		sum := sha256.Sum256(message)
		signed = sum[:]
	case crypto.SHA384:
		sum := sha512.Sum384(message)
		signed = sum[:]
	case crypto.SHA512:
		sum := sha512.Sum512(message)
		signed = sum[:]
	}
	return k.private.Sign(rand.Reader, signed, over)
}

// Payload is what is signed of an image.
func Payload(repository string, image digest.Digest) []byte {
	return fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`,
		repository, image)
}

// SignPayload is the signature of a payload in base64.
func (k *Key) SignPayload(payload []byte) (string, error) {
	over := crypto.SHA256
	if _, edwards := k.private.(ed25519.PrivateKey); edwards {
		over = k.own
	}
	signature, err := k.sign(payload, over)
	return base64.StdEncoding.EncodeToString(signature), err
}

// Tag is where cosign 1 and 2 put the signatures of an image.
func Tag(image digest.Digest) string {
	return strings.Replace(image.String(), ":", "-", 1) + ".sig"
}

// Simple is what belongs under Tag: a signature by each of the keys.
func Simple(repository string, image digest.Digest, keys ...*Key) (*ociimage.Artifact, error) {
	payload := Payload(repository, image)
	a := &ociimage.Artifact{}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: a.Add(ocispec.MediaTypeImageConfig, []byte(`{"architecture":"","created":"0001-01-01T00:00:00Z","os":"","rootfs":{"type":"layers","diff_ids":[]},"config":{}}`)),
	}
	for _, k := range keys {
		signature, err := k.SignPayload(payload)
		if err != nil {
			return nil, fmt.Errorf("cannot sign: %w", err)
		}
		layer := a.Add(simpleType, payload)
		layer.Annotations = map[string]string{"dev.cosignproject.cosign/signature": signature}
		manifest.Layers = append(manifest.Layers, layer)
	}
	return a, a.Seal(manifest.MediaType, manifest)
}

// Statement is what cosign 3 signs of an image.
func Statement(image digest.Digest) []byte {
	return fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{%q:%q}}],"predicateType":"https://sigstore.dev/cosign/sign/v1","predicate":{}}`,
		image.Algorithm().String(), image.Encoded())
}

// Bundle is the Sigstore bundle of a statement.
func (k *Key) Bundle(statement []byte) ([]byte, error) {
	const payloadType = "application/vnd.in-toto+json"
	signature, err := k.sign(fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(statement), statement), k.own)
	if err != nil {
		return nil, fmt.Errorf("cannot sign: %w", err)
	}
	return fmt.Appendf(nil, `{"mediaType":%q,"verificationMaterial":{"publicKey":{"hint":"x"}},"dsseEnvelope":{"payload":%q,"payloadType":%q,"signatures":[{"sig":%q}]}}`,
		bundleType, base64.StdEncoding.EncodeToString(statement), payloadType, base64.StdEncoding.EncodeToString(signature)), nil
}

// Referrer is the artifact of a bundle, which refers to an image. It goes under its own digest.
func Referrer(image *ociimage.Artifact, bundle []byte) (*ociimage.Artifact, error) {
	return Refer(image, bundleType, bundleType, bundle, map[string]string{
		"dev.sigstore.bundle.content":       "dsse-envelope",
		"dev.sigstore.bundle.predicateType": "https://sigstore.dev/cosign/sign/v1",
	})
}

// Refer is an artifact of one layer, which refers to an image.
func Refer(image *ociimage.Artifact, artifactType, mediaType string, layer []byte, annotations map[string]string) (*ociimage.Artifact, error) {
	a := &ociimage.Artifact{}
	return a, a.Seal(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifactType,
		Config:      a.Add(ocispec.MediaTypeEmptyJSON, []byte(`{}`)),
		Layers:      []ocispec.Descriptor{a.Add(mediaType, layer)},
		Subject:     &ocispec.Descriptor{MediaType: image.MediaType, Digest: image.Digest, Size: int64(len(image.Manifest))},
		Annotations: annotations,
	})
}

// Referrers is the index of what refers to an image, for a registry that keeps none. It goes under the tag that is made
// of the image's digest.
func Referrers(referrers ...*ociimage.Artifact) (*ociimage.Artifact, error) {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, r := range referrers {
		manifest, err := r.ReadManifest()
		if err != nil {
			return nil, err
		}
		index.Manifests = append(index.Manifests, ocispec.Descriptor{
			MediaType: r.MediaType, Digest: r.Digest, Size: int64(len(r.Manifest)), ArtifactType: manifest.ArtifactType,
		})
	}
	a := &ociimage.Artifact{Parts: referrers}
	return a, a.Seal(index.MediaType, index)
}
