package wfmsim

import (
	"net/http"
	"slices"
	"strings"
)

// Revision of the standard that a WFM speaks.
type Revision string

// The revisions. RC2 has client ids and signed requests; a document with the same
// label describes the interface of RC3.
const (
	RC3 Revision = "1.0.0-rc.3"
	RC2 Revision = "1.0.0-rc.2"
	RC1 Revision = "1.0.0-rc.1"
)

// Revisions are all there are, newest first.
func Revisions() []Revision { return []Revision{RC3, RC2, RC1} }

// Names of the endpoints, for faults and for the record. Paths of rc.1 and rc.2
// have /clients/{clientId} before deployments, bundles and capabilities.
const (
	EndpointManifest     = "manifest"     // GET /api/v1/deployments
	EndpointDocument     = "document"     // GET /api/v1/deployments/{deploymentId}/{digest}
	EndpointBundle       = "bundle"       // GET /api/v1/bundles/{digest}
	EndpointStatus       = "status"       // POST /api/v1/deployments/{deploymentId}/status
	EndpointCapabilities = "capabilities" // PUT and DELETE /api/v1/capabilities/{deviceId}; POST before rc.3
	EndpointRoot         = "root"         // GET /api/v1/onboarding/certificate, before rc.3
	EndpointOnboarding   = "onboarding"   // POST /api/v1/onboarding, before rc.3
	EndpointOther        = "other"        // no endpoint of the standard
)

// endpoint is one row of the interface.
type endpoint struct {
	name    string
	methods []string
	handle  func(*Server, call) *problem
}

// place is what a path means.
type place struct {
	endpoint
	client string   // that the path names, before rc.3
	args   []string // the variable segments
}

// find gives the row for a path without its prefix, and the variable segments.
// Segments are literal: the standard's names need no escaping and get none.
func (s *Server) find(path string) place {
	nowhere := place{endpoint: endpoint{EndpointOther, nil, (*Server).nothing}}
	rest, ok := strings.CutPrefix(path, "/api/v1/")
	parts := strings.Split(rest, "/")
	switch {
	case !ok || slices.Contains(parts, ""):
		return nowhere
	case s.options.Revision == RC3:
		return s.resource(parts, nowhere)
	case rest == "onboarding/certificate":
		return place{endpoint: endpoint{EndpointRoot, []string{http.MethodGet}, (*Server).getRoot}}
	case rest == "onboarding":
		return place{endpoint: endpoint{EndpointOnboarding, []string{http.MethodPost}, (*Server).postOnboarding}}
	case parts[0] != "clients" || len(parts) < 3:
		return nowhere
	}
	found := s.resource(parts[2:], nowhere)
	found.client = parts[1]
	return found
}

// resource is what there is for one client.
func (s *Server) resource(parts []string, nowhere place) place {
	read := []string{http.MethodGet, http.MethodHead}
	status := "status"
	if s.options.Quirks.Statuses {
		status = "statuses"
	}
	first, count := parts[0], len(parts)
	switch {
	case count == 3 && first == "deployments" && parts[2] == status:
		return place{endpoint{EndpointStatus, []string{http.MethodPost}, (*Server).postStatus}, "", parts[1:2]}
	case count == 1 && first == "deployments":
		return place{endpoint{EndpointManifest, read, (*Server).getManifest}, "", nil}
	case count == 3 && first == "deployments" && parts[2] != "status":
		return place{endpoint{EndpointDocument, read, (*Server).getDocument}, "", parts[1:]}
	case count == 2 && first == "bundles":
		return place{endpoint{EndpointBundle, read, (*Server).getBundle}, "", parts[1:]}
	case first == "capabilities" && s.options.Revision == RC1 && count == 1:
		return place{endpoint{EndpointCapabilities, []string{http.MethodPost, http.MethodPut}, (*Server).capabilities}, "", []string{""}}
	case first == "capabilities" && s.options.Revision != RC1 && count >= 2:
		methods := []string{http.MethodPut, http.MethodDelete}
		if s.options.Revision == RC2 {
			methods = []string{http.MethodPost, http.MethodPut, http.MethodDelete}
		}
		return place{endpoint{EndpointCapabilities, methods, (*Server).capabilities}, "", []string{strings.Join(parts[1:], "/")}}
	}
	return nowhere
}
