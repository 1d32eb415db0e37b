package wfmsim

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/ociimage"
)

// Published tells what became of a document.
type Published struct {
	Client       string        `json:"client"`
	DeploymentID string        `json:"deploymentId"`
	Digest       digest.Digest `json:"digest"`
	Version      uint64        `json:"manifestVersion"`
	// Warnings are the departures from 1.0.0-rc.3 that devices may tolerate.
	Warnings []string `json:"warnings,omitempty"`
}

// Deployed is a deployment as a manifest lists it.
type Deployed struct {
	Client       string        `json:"client"`
	DeploymentID string        `json:"deploymentId"`
	Name         string        `json:"name"`
	Digest       digest.Digest `json:"digest"`
	Since        uint64        `json:"sinceManifestVersion"`
}

// Publish makes an ApplicationDeployment part of what the client is to run, or
// replaces its earlier revision. Publishing what is there already changes
// nothing. Every published revision of the format is accepted, and what is no
// such document refused.
func (s *Server) Publish(client string, body []byte) (Published, error) {
	parsed, err := margo.ParseDeployment(body)
	if err != nil {
		return Published{}, fmt.Errorf("cannot publish: %w", err)
	}
	warnings, err := s.schemas.departures(body)
	if err != nil {
		return Published{}, fmt.Errorf("cannot publish: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if body, err = s.options.Quirks.document(body, client, cmp.Or(s.bound[client], parsed.DeviceID)); err != nil {
		return Published{}, fmt.Errorf("cannot publish: %w", err)
	}
	c, id := s.state.client(client), parsed.ID
	published := Published{Client: client, DeploymentID: id, Digest: digest.FromBytes(body), Warnings: warnings}
	d := c.Deployments[key(id)]
	if d == nil {
		d = &deployment{}
		c.Deployments[key(id)] = d
	}
	d.ID = id
	if len(d.Revisions) == 0 || d.wanted() != published.Digest {
		c.Version++
		c.Documents[published.Digest] = document{Deployment: id, Body: body}
		d.Revisions = append(d.Revisions, revision{Version: c.Version, Digest: published.Digest})
	}
	published.Version = c.Version
	return published, s.saved()
}

// Remove takes a deployment out of the manifest. It returns the version from
// which on it is gone.
func (s *Server) Remove(client, id string) (version uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.client(client)
	d := c.Deployments[key(id)]
	if d == nil || d.wanted() == "" {
		return 0, fmt.Errorf("cannot remove %s from client %s: no such deployment", id, client)
	}
	c.Version++
	d.Revisions = append(d.Revisions, revision{Version: c.Version})
	return c.Version, s.saved()
}

// SetVersion gives the client's present state another manifest version, also a
// lower one: a WFM restored from a backup, or one that lies.
func (s *Server) SetVersion(client string, version uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.client(client).Version = version
	return s.saved()
}

// Restart forgets which versions there were: the client's present state gets the
// versions from 1 on, as with a WFM that was set up anew.
func (s *Server) Restart(client string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.client(client)
	for id, d := range c.Deployments {
		if wanted := d.wanted(); wanted != "" {
			d.Revisions = []revision{{Version: 1, Digest: wanted}}
		} else {
			delete(c.Deployments, id)
		}
	}
	c.Version = 1
	return s.saved()
}

// Version is the version of the client's present manifest.
func (s *Server) Version(client string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.client(client).Version
}

// Deployments lists what the client is to run.
func (s *Server) Deployments(client string) []Deployed {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.client(client)
	list := []Deployed{}
	for _, d := range c.listed() {
		newest := d.Revisions[len(d.Revisions)-1]
		row := Deployed{Client: client, DeploymentID: d.ID, Digest: newest.Digest, Since: newest.Version}
		// What cannot be read has no name.
		if parsed, err := margo.ParseDeployment(c.Documents[newest.Digest].Body); err == nil {
			row.Name = parsed.Name
		}
		list = append(list, row)
	}
	return list
}

// manifest gives the present manifest of a client and its ETag.
func (s *Server) manifest(client string) (body []byte, etag string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.client(client)
	m := margo.StateManifest{Version: c.Version, Deployments: []margo.DeploymentRef{}}
	for _, d := range c.listed() {
		m.Deployments = append(m.Deployments, margo.DeploymentRef{
			ID: d.ID, Digest: d.wanted(), SizeBytes: uint64(len(c.Documents[d.wanted()].Body)),
			URL: s.link(client, "deployments/"+d.ID+"/"+d.wanted().String()),
		})
	}
	name := digest.Digest("") // of the bundle: an empty archive is never served (DS-15)
	if len(m.Deployments) > 0 {
		archive, err := c.bundle()
		if err != nil {
			return nil, "", err
		}
		name = digest.FromBytes(archive)
		m.Bundle = &margo.Bundle{
			MediaType: margo.BundleMediaType, Digest: name, SizeBytes: uint64(len(archive)),
			URL: s.link(client, "bundles/"+name.String()),
		}
	}
	if body, err = json.Marshal(m); err != nil {
		return nil, "", fmt.Errorf("cannot write manifest of client %s: %w", client, err)
	}
	body = s.options.Quirks.manifest(body, c.Version)
	if s.options.Quirks.BundleETag && name != "" {
		return body, quoted(name), nil
	}
	return body, quoted(digest.FromBytes(body)), nil
}

// link is the URL of something of a client, in the form that is wanted; path is
// relative to /api/v1 or to the client.
func (s *Server) link(client, path string) string {
	of := func(client string) string { return "/api/v1/clients/" + client + "/" + path }
	usual := "/api/v1/" + path
	if s.options.Revision != margo.RC3 {
		usual = of(client)
	}
	switch s.options.URLs {
	case Absolute:
		return s.URL() + usual
	case Legacy:
		return s.options.Prefix + of("former-"+client)
	default:
		return s.options.Prefix + usual
	}
}

// bundle is the archive of all listed documents, one file each.
func (c *clientState) bundle() ([]byte, error) {
	var entries []ociimage.Entry
	for _, d := range c.listed() {
		entries = append(entries, ociimage.Entry{Name: key(d.ID) + ".yaml", Data: c.Documents[d.wanted()].Body})
	}
	archive, err := ociimage.TarGzip(entries)
	if err != nil {
		return nil, fmt.Errorf("cannot write bundle: %w", err)
	}
	return archive, nil
}

// document gives a document that the client was ever given. Earlier revisions
// stay within reach: their URLs promise never to change.
func (s *Server) document(client, id string, d digest.Digest) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	doc, ok := s.state.client(client).Documents[d]
	if !ok || key(doc.Deployment) != key(id) {
		return nil, false
	}
	return doc.Body, true
}

// bundleBytes gives the bundle of the present manifest; those of earlier ones
// are gone, and clients that come late have to ask for the manifest again.
func (s *Server) bundleBytes(client string, d digest.Digest) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.client(client)
	if len(c.listed()) == 0 {
		return nil, false
	}
	body, err := c.bundle()
	return body, err == nil && digest.FromBytes(body) == d
}
