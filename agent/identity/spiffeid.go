package identity

import (
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const maxIDLength = 2048

// ID is a SPIFFE ID of one of the management interface's two forms:
//
//	spiffe://<TrustDomain>/margo/wfm/<WFM>
//	spiffe://<TrustDomain>/margo/wfm/<WFM>/client/<Client>
//
// The segments are opaque and compared exactly (ID-26).
type ID struct {
	TrustDomain string
	WFM         string
	Client      string // empty for a WFM
}

// ParseSPIFFEID reads the SPIFFE ID of a WFM or client; any other is an error.
func ParseSPIFFEID(s string) (ID, error) {
	if len(s) > maxIDLength {
		return ID{}, fmt.Errorf("SPIFFE ID has %d bytes; the limit is %d", len(s), maxIDLength)
	}
	parsed, err := spiffeid.FromString(s)
	if err != nil {
		return ID{}, fmt.Errorf("%q is not a SPIFFE ID: %w", s, err)
	}
	id := ID{TrustDomain: parsed.TrustDomain().Name()}
	segments := strings.Split(strings.TrimPrefix(parsed.Path(), "/"), "/")
	switch {
	case len(segments) == 3 && segments[0] == "margo" && segments[1] == "wfm":
		id.WFM = segments[2]
	case len(segments) == 5 && segments[0] == "margo" && segments[1] == "wfm" && segments[3] == "client":
		id.WFM, id.Client = segments[2], segments[4]
	default:
		return ID{}, fmt.Errorf("%q names neither a WFM (/margo/wfm/<id>) nor a client (/margo/wfm/<id>/client/<id>)", s)
	}
	return id, nil
}

// Server is the ID of the WFM that a client belongs to; of a WFM, its own.
func (id ID) Server() ID {
	return ID{TrustDomain: id.TrustDomain, WFM: id.WFM}
}

// String is the SPIFFE ID as it stands in a certificate.
func (id ID) String() string {
	s := "spiffe://" + id.TrustDomain + "/margo/wfm/" + id.WFM
	if id.Client != "" {
		s += "/client/" + id.Client
	}
	return s
}
