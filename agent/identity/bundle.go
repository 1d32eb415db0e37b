package identity

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/margolite/margolite/runtime/pemfile"
)

// Bounds of a trust bundle: a rotation holds two anchors; broken files must not fill the memory.
const (
	maxBundleSize = 1 << 20
	maxAnchors    = 64
)

// useX509SVID is the only key use of a SPIFFE bundle that counts here (ID-20).
const useX509SVID = "x509-svid"

// TrustBundle holds the anchors of one trust domain, which its provider vouches for.
type TrustBundle struct {
	Anchors []*x509.Certificate
	// Sequence and RefreshHint are a SPIFFE bundle's, else zero. Sequence may go back.
	Sequence    uint64
	RefreshHint time.Duration
}

// readSet is the used part of a SPIFFE bundle; unknown members are ignored (ERR-07). Hints, and
// all members of keys with another use, may be of any type.
type readSet struct {
	Keys []struct {
		Use json.RawMessage `json:"use"`
		X5C json.RawMessage `json:"x5c"`
	} `json:"keys"`
	Sequence    json.RawMessage `json:"spiffe_sequence"`
	RefreshHint json.RawMessage `json:"spiffe_refresh_hint"`
}

// ParseTrustBundle reads a SPIFFE bundle (a JWK Set, of which only keys for X.509-SVIDs count) or
// PEM certificates. A bundle without an anchor is refused (ID-19).
func ParseTrustBundle(data []byte) (*TrustBundle, error) {
	if len(data) > maxBundleSize {
		return nil, fmt.Errorf("trust bundle has %d bytes; the limit is %d", len(data), maxBundleSize)
	}
	var (
		bundle *TrustBundle
		err    error
	)
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		bundle, err = parseJWKSet(data)
	} else {
		bundle = &TrustBundle{}
		bundle.Anchors, err = pemfile.Certificates(data, maxAnchors)
	}
	if err != nil {
		return nil, err
	}
	if len(bundle.Anchors) == 0 {
		return nil, errors.New("trust bundle holds no X.509 anchor")
	}
	return bundle, nil
}

func parseJWKSet(data []byte) (*TrustBundle, error) {
	var set readSet
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("trust bundle is not a SPIFFE bundle: %w", err)
	}
	bundle := &TrustBundle{
		Sequence:    hint(set.Sequence),
		RefreshHint: time.Duration(min(hint(set.RefreshHint), math.MaxInt64/uint64(time.Second))) * time.Second,
	}
	for i, key := range set.Keys {
		if string(key.Use) != `"`+useX509SVID+`"` {
			continue
		}
		if len(bundle.Anchors) == maxAnchors {
			return nil, fmt.Errorf("trust bundle holds more than %d anchors", maxAnchors)
		}
		var chain [][]byte
		if err := json.Unmarshal(key.X5C, &chain); err != nil {
			return nil, fmt.Errorf("trust bundle: keys[%d].x5c is not a list of certificates in base64: %w", i, err)
		}
		if len(chain) != 1 {
			return nil, fmt.Errorf("trust bundle: keys[%d].x5c holds %d certificates, expected exactly one", i, len(chain))
		}
		anchor, err := x509.ParseCertificate(chain[0])
		if err != nil {
			return nil, fmt.Errorf("trust bundle: keys[%d].x5c is not a certificate: %w", i, err)
		}
		bundle.Anchors = append(bundle.Anchors, anchor)
	}
	return bundle, nil
}

// hint is a number that nothing depends on; 0: absent or unreadable.
func hint(raw json.RawMessage) uint64 {
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
