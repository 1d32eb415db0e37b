package margo

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
)

// MaxOnboardingBytes bounds the answers of the onboarding interface.
const MaxOnboardingBytes = 256 << 10

// maxClientID bounds an id that the standard only calls URL-safe.
const maxClientID = 128

// OnboardingRequest is the body that introduces a client before rc.3: its certificate as PEM or
// DER, in base64. The early form has another member name.
func OnboardingRequest(certificate []byte, early bool) ([]byte, error) {
	name := "certificate"
	if early {
		name = "public_certificate"
	}
	body, err := marshalJSON(map[string]string{
		"apiVersion": onboardingVersion,
		"kind":       onboardingKind,
		name:         base64.StdEncoding.EncodeToString(certificate),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot marshal onboarding request: %w", err)
	}
	return body, nil
}

// ParseOnboarding reads the client id from either form of answer to an onboarding request.
func ParseOnboarding(body []byte) (clientID string, err error) {
	clientID, err = accept("onboarding", parseJSON, body, limits{bytes: MaxOnboardingBytes, depth: 8, nodes: 256}, func(r *reader, n node) (id string) {
		if r.is(object, "AUTH-05", n) {
			id = r.text("AUTH-05", firstOf(n.member("clientId"), n.member("client_id")))
		}
		return id
	})
	if err != nil {
		return "", err
	}
	if err := CheckClientID(clientID); err != nil {
		return "", fmt.Errorf("cannot accept onboarding: %w", err)
	}
	return clientID, nil
}

// CheckClientID tells whether an id can stand in a path unescaped.
func CheckClientID(id string) error {
	// "." and ".." would be resolved on the way.
	if len(id) > maxClientID || !only(lower+upper+digits+"._~-", id) || only(".", id) {
		return fmt.Errorf("client id must be 1 to %d letters, digits and . _ ~ -, is %.80q", maxClientID, id)
	}
	return nil
}

// ParseRootCertificate reads the answer that offers the WFM's root certificate, which is in any
// of the forms in use: identity.ParseAnchors reads them. An answer that is not JSON is
// taken for the certificate itself.
func ParseRootCertificate(body []byte) ([]byte, error) {
	if !json.Valid(body) {
		return body, nil
	}
	l := limits{bytes: MaxOnboardingBytes, depth: 8, nodes: 256}
	return accept("root certificate", parseJSON, body, l, func(r *reader, n node) (certificate []byte) {
		if r.is(object, "AUTH-02", n) {
			certificate = []byte(r.text("AUTH-02", n.member("certificate")))
		}
		return certificate
	})
}
