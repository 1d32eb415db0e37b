package cosign

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/margolite/margolite/runtime/pemfile"
)

const (
	MaxKeys  = 64 << 10 // bytes
	mostKeys = 16       // in one file
	leastRSA = 2048     // bits
	mostRSA  = 8192
)

// Keys are public keys, one of which must have signed an image. The zero value is empty.
type Keys struct{ keys []key }

// key is a public key: *ecdsa.PublicKey of P-256 or P-384, ed25519.PublicKey or *rsa.PublicKey.
type key struct {
	id     string
	public crypto.PublicKey
}

// ParseKeys parses PEM public keys, such as cosign.pub.
func ParseKeys(data []byte) (Keys, error) {
	if len(data) > MaxKeys {
		return Keys{}, fmt.Errorf("%d bytes, more than %d", len(data), MaxKeys)
	}
	data, err := pemfile.Tidy(data)
	if err != nil {
		return Keys{}, err
	}
	var all Keys
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			return Keys{}, errors.New("it holds a private key, which must stay with the signer")
		}
		if block.Type != "PUBLIC KEY" {
			return Keys{}, fmt.Errorf("expected a PEM block PUBLIC KEY, got %.40q", block.Type)
		}
		if len(all.keys) == mostKeys {
			return Keys{}, fmt.Errorf("more than %d keys", mostKeys)
		}
		k, err := parseKey(block.Bytes)
		if err != nil {
			return Keys{}, err
		}
		all = all.With(Keys{[]key{k}})
	}
	if len(all.keys) == 0 {
		return Keys{}, errors.New("it has no PEM public key")
	}
	return all, nil
}

func parseKey(der []byte) (key, error) {
	public, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return key{}, fmt.Errorf("cannot read public key: %w", err)
	}
	switch k := public.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() && k.Curve != elliptic.P384() {
			return key{}, fmt.Errorf("an ECDSA key on %s; expected P-256 or P-384", k.Curve.Params().Name)
		}
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < leastRSA || bits > mostRSA {
			return key{}, fmt.Errorf("an RSA key of %d bits; expected %d to %d", bits, leastRSA, mostRSA)
		}
	case ed25519.PublicKey:
	default:
		return key{}, errors.New("expected an ECDSA, Ed25519 or RSA key")
	}
	sum := sha256.Sum256(der)
	return key{hex.EncodeToString(sum[:]), public}, nil
}

// With returns the union of both.
func (k Keys) With(o Keys) Keys {
	all := slices.Clone(k.keys)
	for _, other := range o.keys {
		if !k.Has(other.id) {
			all = append(all, other)
		}
	}
	return Keys{all}
}

// Has tells whether k has a key, by the hexadecimal SHA-256 of its SubjectPublicKeyInfo (DER).
func (k Keys) Has(id string) bool {
	return slices.ContainsFunc(k.keys, func(key key) bool { return key.id == id })
}

// Len is the number of keys.
func (k Keys) Len() int { return len(k.keys) }

// signed tells whether the key signed a message. Cosign signs with the hash of the registry,
// SHA-256, and its bundles with the hash that belongs to the key.
func (k key) signed(message, signature []byte) bool {
	switch public := k.public.(type) {
	case *ecdsa.PublicKey:
		short := sha256.Sum256(message)
		if ecdsa.VerifyASN1(public, short[:], signature) {
			return true
		}
		long := sha512.Sum384(message)
		return public.Curve == elliptic.P384() && ecdsa.VerifyASN1(public, long[:], signature)
	case *rsa.PublicKey:
		sum := sha256.Sum256(message)
		return rsa.VerifyPKCS1v15(public, crypto.SHA256, sum[:], signature) == nil
	case ed25519.PublicKey:
		if ed25519.Verify(public, message, signature) {
			return true
		}
		sum := sha512.Sum512(message)
		return ed25519.VerifyWithOptions(public, sum[:], signature, &ed25519.Options{Hash: crypto.SHA512}) == nil
	}
	return false
}
