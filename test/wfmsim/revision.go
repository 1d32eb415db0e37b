package wfmsim

import (
	"net/http"
	"slices"
	"strings"

	"github.com/margolite/margolite/agent/margo"
)

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
	path    string // below /api/v1/; * stands for one segment, ** at the end for all that are left
	methods []string
	handle  func(*Server, call) *problem
}

// endpoints is the interface of the revision. The first row that fits a path counts.
func (s *Server) endpoints() []endpoint {
	get, read, post := []string{http.MethodGet}, []string{http.MethodGet, http.MethodHead}, []string{http.MethodPost}
	device, status := "capabilities/**", "status"
	describe := []string{http.MethodPut, http.MethodDelete}
	switch s.options.Revision {
	case margo.RC2:
		describe = []string{http.MethodPost, http.MethodPut, http.MethodDelete}
	case margo.RC1:
		device, describe = "capabilities", []string{http.MethodPost, http.MethodPut}
	}
	if s.options.Quirks.Statuses {
		status = "statuses"
	}
	all := []endpoint{
		{EndpointManifest, "deployments", read, (*Server).getManifest},
		{EndpointStatus, "deployments/*/" + status, post, (*Server).postStatus},
		{EndpointDocument, "deployments/*/*", read, (*Server).getDocument},
		{EndpointBundle, "bundles/*", read, (*Server).getBundle},
		{EndpointCapabilities, device, describe, (*Server).capabilities},
	}
	if s.options.Revision == margo.RC3 {
		return all
	}
	for i := range all {
		all[i].path = "clients/*/" + all[i].path
	}
	return append(all,
		endpoint{EndpointRoot, "onboarding/certificate", get, (*Server).getRoot},
		endpoint{EndpointOnboarding, "onboarding", post, (*Server).postOnboarding})
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
	rest, ok := strings.CutPrefix(path, "/api/v1/")
	parts := strings.Split(rest, "/")
	for _, e := range s.endpoints() {
		args, fits := match(strings.Split(e.path, "/"), parts)
		if !ok || !fits || slices.Contains(parts, "") {
			continue
		}
		at := place{e, "", args}
		if strings.HasPrefix(e.path, "clients/") {
			at.client, at.args = args[0], args[1:]
		}
		return at
	}
	return place{endpoint: endpoint{name: EndpointOther, handle: (*Server).nothing}}
}

// match gives the segments that the stars of a pattern stand for.
func match(pattern, parts []string) (args []string, fits bool) {
	for i, p := range pattern {
		switch {
		case i == len(parts):
			return nil, false
		case p == "**":
			return append(args, strings.Join(parts[i:], "/")), true
		case p == "*":
			args = append(args, parts[i])
		case p != parts[i]:
			return nil, false
		}
	}
	return args, len(pattern) == len(parts)
}
