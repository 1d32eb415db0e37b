package pki

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/margolite/margolite/agent/identity"
)

// jwkSet is a SPIFFE bundle to be written.
type jwkSet struct {
	Keys        []jwk  `json:"keys"`
	Sequence    uint64 `json:"spiffe_sequence,omitempty"`
	RefreshHint uint64 `json:"spiffe_refresh_hint,omitempty"`
}

type jwk struct {
	KeyType string   `json:"kty"`
	Curve   string   `json:"crv,omitempty"`
	X       string   `json:"x,omitempty"`
	Y       string   `json:"y,omitempty"`
	N       string   `json:"n,omitempty"`
	E       string   `json:"e,omitempty"`
	Use     string   `json:"use"`
	X5C     []string `json:"x5c"`
}

// VerifyClient checks the X.509-SVID of a client as a WFM does, leaf first, and returns
// whose it is.
func VerifyClient(chain []*x509.Certificate, bundle *identity.TrustBundle, trustDomain string, at time.Time) (identity.ID, error) {
	domain, err := spiffeid.TrustDomainFromString(trustDomain)
	if err != nil {
		return identity.ID{}, err
	}
	anchors := x509bundle.FromX509Authorities(domain, bundle.Anchors)
	peer, _, err := x509svid.Verify(chain, anchors, x509svid.WithTime(at))
	if err != nil {
		return identity.ID{}, err
	}
	id, err := identity.ParseSPIFFEID(peer.String())
	if err == nil && id.Client == "" {
		err = fmt.Errorf("%s is a WFM, expected a client", id)
	}
	return id, err
}

// MarshalBundle writes a trust bundle as a SPIFFE bundle.
func MarshalBundle(bundle *identity.TrustBundle) ([]byte, error) {
	set := jwkSet{
		Keys:        []jwk{},
		Sequence:    bundle.Sequence,
		RefreshHint: uint64(max(bundle.RefreshHint, 0) / time.Second),
	}
	for _, anchor := range bundle.Anchors {
		key, err := marshalKey(anchor)
		if err != nil {
			return nil, fmt.Errorf("cannot write anchor %q: %w", anchor.Subject, err)
		}
		set.Keys = append(set.Keys, key)
	}
	return json.MarshalIndent(set, "", "  ")
}

func marshalKey(anchor *x509.Certificate) (jwk, error) {
	key := jwk{Use: "x509-svid", X5C: []string{base64.StdEncoding.EncodeToString(anchor.Raw)}}
	encode := base64.RawURLEncoding.EncodeToString
	switch public := anchor.PublicKey.(type) {
	case *ecdsa.PublicKey:
		point, err := public.Bytes() // 4, x, y (SEC 1)
		if err != nil {
			return jwk{}, err
		}
		half := len(point) / 2
		key.KeyType, key.Curve = "EC", public.Params().Name
		key.X, key.Y = encode(point[1:1+half]), encode(point[1+half:])
	case ed25519.PublicKey:
		key.KeyType, key.Curve, key.X = "OKP", "Ed25519", encode(public)
	case *rsa.PublicKey:
		key.KeyType = "RSA"
		key.N, key.E = encode(public.N.Bytes()), encode(big.NewInt(int64(public.E)).Bytes())
	default:
		return jwk{}, fmt.Errorf("unsupported public key %T", public)
	}
	return key, nil
}
