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
	// ErrNotApproved: approval is pending or denied; the WFM does not say which.
	ErrNotApproved = errors.New("the WFM has not approved this client, or has rejected it")
	// ErrCertificateRefused: the WFM cannot use the certificate.
	ErrCertificateRefused = errors.New("the WFM does not accept the client's certificate")
	// ErrCertificateKnown: the WFM has already given the certificate an id, which it tells only
	// once: the device has lost it.
	ErrCertificateKnown = errors.New("the WFM already knows this certificate: set wfm.clientId to the id that it assigned, or remove the device there")
)

// slowRetry is the least time between refused attempts to onboard: approval takes people time.
const slowRetry = 10 * time.Minute

// Onboard introduces the client to a WFM before rc.3 and returns its new client id (AUTH-04,
// AUTH-14). The client uses the id from then on; the caller keeps it for Options.ClientID
// (AUTH-05). Repeating it is safe.
//
// The device's certificate is sent as PEM, as the reference server wants it. The error is
// ErrNotApproved or ErrCertificateRefused if the WFM refuses; Retry then waits some minutes.
func (c *Client) Onboard(ctx context.Context, certificate []byte) (clientID string, err error) {
	const op = "onboard"
	if !c.options.Dialect.Signed() {
		return "", fmt.Errorf("cannot %s: revision %s has no onboarding: %w", op, c.options.Dialect, errors.ErrUnsupported)
	}
	a, err := c.introduce(ctx, op, certificate, false)
	if statusOf(err) == http.StatusBadRequest {
		// The WFM refuses either the certificate or its member's name.
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

// notOnboarded gives the meaning of a refusal, and a slow retry.
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

// RootCertificate asks a WFM before rc.3 for its root certificate, in any form that
// identity.ParseAnchors reads. It is the one unsigned request (AUTH-08). What comes over the
// Client's trusted connection is as good as the anchors in Options.TLS, never better (AUTH-02).
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
