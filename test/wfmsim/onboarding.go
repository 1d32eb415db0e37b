package wfmsim

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/margolite/margolite/test/wfmsim/serving"
)

// Pending is a client that asked to be onboarded and waits to be approved.
type Pending struct {
	Fingerprint string    `json:"fingerprint"` // hex SHA-256 of the certificate
	Subject     string    `json:"subject"`
	Since       time.Time `json:"since"`
	Client      string    `json:"clientId"` // that it will have

	certificate *x509.Certificate
}

// ClientID is the id that a client with this certificate is given, unless
// Enroll gave it another: the same one each time.
func ClientID(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	sum[6], sum[8] = sum[6]&0x0f|0x40, sum[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

func fingerprint(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	return hex.EncodeToString(sum[:])
}

// Enroll makes a client known by the certificate that it signs with, under an id
// of the caller's choice. A client that is known need not onboard, and is given
// this id where it does.
func (s *Server) Enroll(client string, certificate *x509.Certificate) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.client(client).Certificate = certificate.Raw
	delete(s.pending, fingerprint(certificate))
	return s.saved()
}

// Pending lists the clients that wait to be approved, the first to come first.
func (s *Server) Pending() []Pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.pending), func(a, b Pending) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
}

// WaitPending returns when a client waits to be approved, and gives the first.
func (s *Server) WaitPending(ctx context.Context) (first Pending, err error) {
	err = s.wait(ctx, "a client to approve", func() bool {
		waiting := s.Pending()
		if len(waiting) > 0 {
			first = waiting[0]
		}
		return len(waiting) > 0
	})
	return first, err
}

// WaitClient returns when a client is onboarded, and gives the id of one.
func (s *Server) WaitClient(ctx context.Context) (client string, err error) {
	err = s.wait(ctx, "a client", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, id := range slices.Sorted(maps.Keys(s.state.Clients)) {
			if s.state.Clients[id].Certificate != nil {
				client = id
			}
		}
		return client != ""
	})
	return client, err
}

// Approve lets a client in that waits; it learns it when it asks again.
func (s *Server) Approve(fingerprint string) (client string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pending[fingerprint]
	if !ok {
		return "", fmt.Errorf("cannot approve %s: no such certificate is waiting", fingerprint)
	}
	delete(s.pending, fingerprint)
	s.state.client(p.Client).Certificate = p.certificate.Raw
	return p.Client, s.saved()
}

// Forget makes a client unknown: its paths are 404 from now on, and it has to be
// onboarded again. What it is to run is kept.
func (s *Server) Forget(client string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.client(client).Certificate = nil
	return s.saved()
}

// certificate is what a client signs with.
func (s *Server) certificate(client string) (*x509.Certificate, *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.state.Clients[client]
	if known == nil || known.Certificate == nil {
		p := blank(http.StatusNotFound, "There is no client "+client+".")
		p.title = "Client not found"
		return nil, p
	}
	certificate, err := x509.ParseCertificate(known.Certificate)
	if err != nil {
		return nil, blank(http.StatusInternalServerError, err.Error())
	}
	return certificate, s.trusted(certificate)
}

func rejected(detail string) *problem {
	return &problem{status: http.StatusForbidden, title: "Client rejected", detail: detail}
}

// trusted says whether a certificate is one to sign with (AUTH-10).
func (s *Server) trusted(certificate *x509.Certificate) *problem {
	now := time.Now()
	switch {
	case now.Before(certificate.NotBefore) || now.After(certificate.NotAfter):
		return rejected("The client's certificate is not valid at this time.")
	case s.options.ClientCAs != nil:
		_, err := certificate.Verify(x509.VerifyOptions{
			Roots: s.options.ClientCAs, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		if err != nil {
			return rejected("The client's certificate is not trusted: " + err.Error() + ".")
		}
	}
	return nil
}

// getRoot tells the anchors of the server's own certificate. It needs no
// signature: who asks has none yet.
func (s *Server) getRoot(c call) *problem {
	if len(s.options.Root) == 0 {
		return blank(http.StatusNotFound, "The root certificate is provided by other means.")
	}
	serving.Answer(c.w, http.StatusOK, jsonMediaType, map[string]string{"certificate": base64.StdEncoding.EncodeToString(s.options.Root)})
	return nil
}

// postOnboarding takes a client in (AUTH-04): what it sends is signed with the
// key of the certificate that it sends.
func (s *Server) postOnboarding(c call) *problem {
	body, refusal := c.body()
	if refusal != nil {
		return refusal
	}
	sent, answered := "certificate", "clientId"
	if s.options.Quirks.PublicCertificate {
		sent, answered = "public_certificate", "client_id"
	} else if refusal := conform(s.schemas.onboarding, body); refusal != nil {
		refusal.status = http.StatusBadRequest
		return refusal
	}
	request, err := members(body)
	if err != nil {
		return invalid("The body is not a JSON object: " + err.Error() + ".")
	}
	var encoded string
	if err := json.Unmarshal(request[sent], &encoded); err != nil {
		return invalid("The member " + sent + " is missing or no text.")
	}
	certificate, err := readCertificate(encoded)
	if err != nil {
		return &problem{status: http.StatusBadRequest, title: "Invalid certificate", detail: err.Error()}
	}
	if refusal := s.verify(c.r, body, certificate); refusal != nil {
		return refusal
	}
	if refusal := s.trusted(certificate); refusal != nil {
		return refusal
	}
	client, refusal := s.admit(certificate)
	if refusal != nil {
		return refusal
	}
	serving.Answer(c.w, http.StatusCreated, jsonMediaType, map[string]string{answered: client})
	return nil
}

// admit gives a certificate its client id, the one that it had if it had one.
func (s *Server) admit(certificate *x509.Certificate) (client string, refusal *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, known := range s.state.Clients {
		if slices.Equal(known.Certificate, certificate.Raw) {
			if s.options.Quirks.NumberedClients {
				return "", &problem{status: http.StatusConflict, title: "Device onboarding denied", detail: "Device signature already exists"}
			}
			return id, nil
		}
	}
	client = ClientID(certificate)
	if s.options.Quirks.NumberedClients {
		client = fmt.Sprintf("client-%s-%d", fingerprint(certificate)[:16], time.Now().Unix())
	}
	if s.options.Approval {
		name := fingerprint(certificate)
		if _, waits := s.pending[name]; !waits && len(s.pending) < maxPending {
			s.pending[name] = Pending{
				Fingerprint: name, Subject: certificate.Subject.String(), Since: time.Now(), Client: client, certificate: certificate,
			}
			s.tell()
		}
		return "", rejected("The client waits to be approved.") // there is no answer of its own for it
	}
	s.state.client(client).Certificate = certificate.Raw
	return client, unsaved(s.saved())
}

// maxPending bounds the clients that may wait.
const maxPending = 1000

// readCertificate reads what a client is onboarded with: base64 of PEM or of DER
//
func readCertificate(text string) (*x509.Certificate, error) {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("it is not base64: %w", err)
	}
	if block, _ := pem.Decode(data); block != nil {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("it is PEM of a %s", block.Type)
		}
		data = block.Bytes
	}
	certificate, err := x509.ParseCertificate(data)
	if err != nil {
		return nil, fmt.Errorf("it is not a certificate: %w", err)
	}
	return certificate, nil
}
