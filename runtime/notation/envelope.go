package notation

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	_ "crypto/sha256" // crypto.SHA256
	_ "crypto/sha512" // crypto.SHA384 and SHA512
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/opencontainers/go-digest"
)

const (
	ArtifactType = "application/vnd.cncf.notary.signature"
	JWSType      = "application/jose+json"
	COSEType     = "application/cose"
)

const (
	mostChain = 10   // certificates
	mostRSA   = 8192 // bits: a bigger key takes seconds
)

// envelope is an unverified signature.
type envelope struct {
	header    header
	chain     []*x509.Certificate // that of the signer first
	payload   []byte
	message   []byte // that was signed: header and payload
	signature []byte
}

// header is what is signed besides the payload.
type header struct {
	Algorithm   string    `json:"alg" cbor:"-"`
	Critical    []string  `json:"crit" cbor:"2,keyasint"`
	ContentType string    `json:"cty" cbor:"3,keyasint"`
	Scheme      string    `json:"io.cncf.notary.signingScheme" cbor:"io.cncf.notary.signingScheme"`
	Expiry      time.Time `json:"io.cncf.notary.expiry" cbor:"io.cncf.notary.expiry"` // zero: never
}

func parse(mediaType string, data []byte) (*envelope, error) {
	if mediaType == COSEType {
		return parseCOSE(data)
	}
	return parseJWS(data)
}

// parseJWS parses a JWS in flattened JSON (RFC 7515).
func parseJWS(data []byte) (*envelope, error) {
	var j struct {
		Protected string `json:"protected"`
		Payload   string `json:"payload"`
		Signature string `json:"signature"`
		Header    struct {
			Chain [][]byte `json:"x5c"`
		} `json:"header"`
	}
	if err := json.Unmarshal(data, &j); err != nil {
		return nil, err
	}
	var parts [3][]byte
	for n, text := range []string{j.Protected, j.Payload, j.Signature} {
		var err error
		if parts[n], err = base64.RawURLEncoding.DecodeString(text); err != nil {
			return nil, err
		}
	}
	e := envelope{payload: parts[1], message: []byte(j.Protected + "." + j.Payload), signature: parts[2]}
	if err := json.Unmarshal(parts[0], &e.header); err != nil {
		return nil, err
	}
	return &e, e.setChain(j.Header.Chain)
}

// parseCOSE parses a COSE_Sign1 (RFC 9052) with the chain of RFC 9360.
func parseCOSE(data []byte) (*envelope, error) {
	mode, err := cbor.DecOptions{DupMapKey: cbor.DupMapKeyEnforcedAPF, TimeTag: cbor.DecTagRequired}.DecMode()
	if err != nil {
		return nil, err
	}
	const sign1 = 18
	var tagged cbor.RawTag
	if err := mode.Unmarshal(data, &tagged); err != nil {
		return nil, err
	}
	if tagged.Number != sign1 {
		return nil, fmt.Errorf("expected tag %d, got %d", sign1, tagged.Number)
	}
	var c struct {
		_           struct{} `cbor:",toarray"`
		Protected   []byte
		Unprotected struct {
			Chain [][]byte `cbor:"33,keyasint"`
		}
		Payload, Signature []byte
	}
	if err := mode.Unmarshal(tagged.Content, &c); err != nil {
		return nil, err
	}
	var number struct {
		Algorithm int `cbor:"1,keyasint"`
	}
	e := envelope{payload: c.Payload, signature: c.Signature}
	if err := errors.Join(mode.Unmarshal(c.Protected, &number), mode.Unmarshal(c.Protected, &e.header)); err != nil {
		return nil, err
	}
	e.header.Algorithm = map[int]string{-7: "ES256", -35: "ES384", -36: "ES512", -37: "PS256", -38: "PS384", -39: "PS512"}[number.Algorithm]
	if e.message, err = cbor.Marshal([]any{"Signature1", c.Protected, []byte{}, c.Payload}); err != nil {
		return nil, err
	}
	return &e, e.setChain(c.Unprotected.Chain)
}

func (e *envelope) setChain(raw [][]byte) error {
	if len(raw) == 0 || len(raw) > mostChain {
		return fmt.Errorf("expected 1 to %d certificates, got %d", mostChain, len(raw))
	}
	for _, der := range raw {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		if key, ok := c.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > mostRSA {
			return fmt.Errorf("an RSA key of %d bits; the limit is %d", key.N.BitLen(), mostRSA)
		}
		e.chain = append(e.chain, c)
	}
	return nil
}

// check refuses all but the one supported form.
func (h *header) check() error {
	const (
		scheme      = "notary.x509"
		contentType = "application/vnd.cncf.notary.payload.v1+json"
	)
	wanted := []string{"io.cncf.notary.signingScheme"}
	if !h.Expiry.IsZero() {
		wanted = append(wanted, "io.cncf.notary.expiry")
	}
	slices.Sort(h.Critical)
	slices.Sort(wanted)
	switch {
	case h.Scheme != scheme:
		return fmt.Errorf("its signing scheme is %.80q, not %s", h.Scheme, scheme)
	case h.ContentType != contentType:
		return fmt.Errorf("its content type is %.80q, not %s", h.ContentType, contentType)
	case !slices.Equal(h.Critical, wanted):
		return fmt.Errorf("its critical headers are %.200q, expected %q", h.Critical, wanted)
	}
	return nil
}

// intact verifies the signature with the signer's key, which determines the algorithm.
func (e *envelope) intact() error {
	kind, bits := "", 0
	switch key := e.chain[0].PublicKey.(type) {
	case *rsa.PublicKey:
		kind, bits = "PS", key.Size()
	case *ecdsa.PublicKey:
		kind, bits = "ES", min(key.Params().BitSize, 512) // P-521 has SHA-512
	}
	hash, ok := map[int]crypto.Hash{256: crypto.SHA256, 384: crypto.SHA384, 512: crypto.SHA512}[bits]
	if algorithm := fmt.Sprint(kind, bits); !ok || algorithm != e.header.Algorithm {
		return fmt.Errorf("its algorithm is %.20q; its key has %s", e.header.Algorithm, algorithm)
	}
	h := hash.New()
	h.Write(e.message)
	switch key := e.chain[0].PublicKey.(type) {
	case *rsa.PublicKey:
		ok = rsa.VerifyPSS(key, hash, h.Sum(nil), e.signature, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}) == nil
	case *ecdsa.PublicKey:
		half := (key.Params().BitSize + 7) / 8
		ok = len(e.signature) == 2*half &&
			ecdsa.Verify(key, h.Sum(nil), new(big.Int).SetBytes(e.signature[:half]), new(big.Int).SetBytes(e.signature[half:]))
	}
	if !ok {
		return errors.New("it was changed, or not made by the key of its certificate")
	}
	return nil
}

// artifact is the signed digest.
func (e *envelope) artifact() (digest.Digest, error) {
	var payload struct {
		Target struct {
			Digest digest.Digest `json:"digest"`
		} `json:"targetArtifact"`
	}
	err := json.Unmarshal(e.payload, &payload)
	return payload.Target.Digest, err
}
