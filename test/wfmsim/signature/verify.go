package signature

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/yaronf/httpsign"
)

// Window of the time of creation (AUTH-11).
const (
	MaxAge   = 5 * time.Minute
	MaxAhead = 30 * time.Second
)

// ErrDigest is returned for a Content-Digest that is missing, malformed, or of
// another body (AUTH-06). The standard answers it by 400, everything else by 401.
var ErrDigest = errors.New("wrong content-digest")

// Verify checks that a request, as the server received it over TLS, was signed
// with a key within the window around now. The body is all that came.
func Verify(r *http.Request, body []byte, key crypto.PublicKey, now time.Time) error {
	received := r.Clone(r.Context())
	received.URL.Scheme, received.URL.Host = "https", r.Host // a server reads neither
	received.Body = io.NopCloser(bytes.NewReader(body))
	wanted := []string{"@method", "@target-uri"} // AUTH-07
	digests := r.Header.Values("Content-Digest")
	if len(body) > 0 {
		wanted = append(wanted, "content-digest")
		if err := httpsign.ValidateContentDigestHeader(digests, &received.Body, []string{httpsign.DigestSha256}); err != nil {
			return fmt.Errorf("%w: %w", ErrDigest, err)
		}
	} else if len(digests) > 0 {
		return fmt.Errorf("%w: Content-Digest is for requests with a body", ErrDigest)
	}
	label, err := theOnly(r.Header, "Signature")
	if err != nil {
		return err
	}
	if other, err := theOnly(r.Header, "Signature-Input"); err != nil || other != label {
		return fmt.Errorf("no Signature-Input of signature %q: %w", label, err)
	}
	details, err := httpsign.RequestDetails(label, received)
	if err != nil {
		return err
	}
	switch {
	case details.KeyID == "":
		return errors.New("the parameter keyid is empty")
	case details.Created == nil:
		return errors.New("the parameter created is missing or no integer")
	case details.Created.Before(now.Add(-MaxAge)):
		return fmt.Errorf("created %s ago, at most %s are allowed", now.Sub(*details.Created).Round(time.Second), MaxAge)
	case details.Created.After(now.Add(MaxAhead)):
		return fmt.Errorf("created %s in the future, at most %s are allowed", details.Created.Sub(now).Round(time.Second), MaxAhead)
	case details.Expires != nil && now.After(*details.Expires):
		return errors.New("it has expired")
	}
	verifiers, err := verifiersOf(key, details.Alg, httpsign.Headers(wanted...))
	if err != nil {
		return err
	}
	var failure error
	for _, v := range verifiers {
		if failure = httpsign.VerifyRequest(label, *v, received); failure == nil {
			return nil
		}
	}
	return failure
}

// theOnly is the label of the one signature that a request has. Of several, one
// might say this and another that.
func theOnly(header http.Header, name string) (label string, err error) {
	dictionary, err := httpsfv.UnmarshalDictionary(header.Values(name))
	if err != nil {
		return "", fmt.Errorf("%s cannot be read: %w", name, err)
	}
	names := dictionary.Names()
	if len(names) != 1 {
		return "", fmt.Errorf("%s has %d members, want one", name, len(names))
	}
	return names[0], nil
}

// verifiersOf are those of the algorithms for a key (AUTH-09), or of the one that
// the request names. The standard's rsa-pss-sha256 is one that nobody registered;
// the registered rsa-pss-sha512 takes its place.
func verifiersOf(key crypto.PublicKey, named string, fields httpsign.Fields) ([]*httpsign.Verifier, error) {
	// The time is checked by the caller's clock.
	config := httpsign.NewVerifyConfig().SetVerifyCreated(false).SetRejectExpired(false)
	var list []*httpsign.Verifier
	var failure error
	add := func(algorithm string, v *httpsign.Verifier, err error) {
		failure = errors.Join(failure, err)
		if named == "" || named == algorithm {
			list = append(list, v)
		}
	}
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P384() {
			v, err := httpsign.NewP384Verifier(*key, config, fields)
			add("ecdsa-p384-sha384", v, err)
			break
		}
		v, err := httpsign.NewP256Verifier(*key, config, fields)
		add("ecdsa-p256-sha256", v, err)
	case *rsa.PublicKey:
		v, err := httpsign.NewRSAVerifier(*key, config, fields)
		add("rsa-v1_5-sha256", v, err)
		v, err = httpsign.NewRSAPSSVerifier(*key, config, fields)
		add("rsa-pss-sha512", v, err)
	}
	if failure == nil && len(list) == 0 {
		failure = fmt.Errorf("there is no algorithm %q for a key of type %T", named, key)
	}
	return list, failure
}
