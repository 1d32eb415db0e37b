package wfm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/margolite/margolite/agent/margo"
)

// Why a client is not onboarded.
var (
	// ErrNotApproved: somebody has to approve the client first, or has rejected
	// it; the WFM does not say which.
	ErrNotApproved = errors.New("the WFM has not approved this client, or has rejected it")
	// ErrCertificateRefused: the WFM cannot use the certificate.
	ErrCertificateRefused = errors.New("the WFM does not accept the client's certificate")
	// ErrCertificateKnown: the WFM has given the certificate an id already, and tells
	// it only once: the device has lost it.
	ErrCertificateKnown = errors.New("the WFM already knows this certificate: set wfm.clientId to the id that it assigned, or remove the device there")
)

// slowRetry is the least time between two tries to be onboarded that end with
// a refusal: people take their time.
const slowRetry = 10 * time.Minute

// Onboard introduces the client to a WFM that speaks a dialect before rc.3, and
// returns the client id that it is given (AUTH-04, AUTH-14). The client uses
// the id from then on; the caller keeps it for Options.ClientID (AUTH-05).
// Doing it again is safe.
//
// The certificate is the device's, as PEM, and is sent as that: the reference
// server wants it so. The error is ErrNotApproved or ErrCertificateRefused
// where the WFM refuses; Retry then tells to wait for some minutes.
func (c *Client) Onboard(ctx context.Context, certificate []byte) (clientID string, err error) {
	const op = "onboard"
	if !c.options.Dialect.Signed() {
		return "", fmt.Errorf("cannot %s: revision %s has no onboarding: %w", op, c.options.Dialect, errors.ErrUnsupported)
	}
	a, err := c.introduce(ctx, op, certificate, false)
	if statusOf(err) == http.StatusBadRequest {
		// Either the certificate is not to the WFM's liking, or its name is.
		if again, earlyErr := c.introduce(ctx, op, certificate, true); statusOf(earlyErr) != http.StatusBadRequest {
			a, err = again, earlyErr
		}
	}
	if err != nil {
		return "", notOnboarded(err)
	}
	clientID, err = margo.ParseOnboarding(a.body)
	if err != nil {
		return "", fmt.Errorf("cannot %s: %w", op, err)
	}
	c.clientID.Store(&clientID)
	c.fresh.Store(true)
	return clientID, nil
}

// notOnboarded says what a refusal means, and that there is time.
func notOnboarded(err error) error {
	var refused *Error
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		refused.meaning = ErrCertificateRefused
	case http.StatusForbidden:
		refused.meaning = ErrNotApproved
	case http.StatusConflict:
		refused.meaning = ErrCertificateKnown
	case http.StatusUnauthorized, http.StatusNotFound:
	default:
		return err
	}
	refused.patience = slowRetry
	return err
}

func (c *Client) introduce(ctx context.Context, op string, certificate []byte, early bool) (*answer, error) {
	body, err := margo.OnboardingRequest(certificate, early)
	if err != nil {
		return nil, fmt.Errorf("cannot %s: %w", op, err)
	}
	return c.do(ctx, request{
		op:     op,
		method: http.MethodPost,
		url:    c.base.JoinPath("api/v1/onboarding"),
		body:   body,
		limit:  margo.MaxOnboardingBytes,
	})
}

// RootCertificate asks a WFM that speaks a dialect before rc.3 for its own root
// certificate, in any of the forms that identity.ParseAnchors reads. It is the
// one request that is not signed (AUTH-08). The connection has to be trusted
// already, as each of a Client's is: what comes over it is as good as the
// anchors in Options.TLS, never better (AUTH-02).
func (c *Client) RootCertificate(ctx context.Context) ([]byte, error) {
	const op = "get root certificate"
	if !c.options.Dialect.Signed() {
		return nil, fmt.Errorf("cannot %s: revision %s does not offer it: %w", op, c.options.Dialect, errors.ErrUnsupported)
	}
	a, err := c.do(ctx, request{
		op:       op,
		url:      c.base.JoinPath("api/v1/onboarding/certificate"),
		header:   http.Header{"Accept": {"application/json"}},
		limit:    margo.MaxOnboardingBytes,
		unsigned: true,
	})
	if err != nil {
		return nil, err
	}
	certificate, err := margo.ParseRootCertificate(a.body)
	if err != nil {
		return nil, fmt.Errorf("cannot %s: %w", op, err)
	}
	return certificate, nil
}
