package wfmsim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/store"
)

// state is everything that outlives the process; the file holds it as JSON.
type state struct {
	Clients map[string]*clientState `json:"clients"`
	Reports []Report                `json:"reports"` // in order of arrival, over all clients

	file string // empty: in memory only
}

// maxReports bounds the reports kept; the oldest go first.
const maxReports = 10_000

// clientState is what the WFM knows and wants of one client.
type clientState struct {
	Certificate []byte                     `json:"certificate,omitempty"` // that it signs with, DER; before RC3
	Version     uint64                     `json:"manifestVersion"`
	Deployments map[string]*deployment     `json:"deployments"` // by id, lower case
	Documents   map[digest.Digest]document `json:"documents"`
	Devices     map[string]json.RawMessage `json:"devices"` // capabilities as they were sent
}

// deployment is one deployment and all that ever became of it.
type deployment struct {
	ID        string     `json:"id"` // as its newest document spells it
	Revisions []revision `json:"revisions"`
}

// revision is what a manifest version made of a deployment. It holds until the
// next one.
type revision struct {
	Version uint64        `json:"manifestVersion"`
	Digest  digest.Digest `json:"digest"` // empty: removed
}

// document is a document as it was published.
type document struct {
	Deployment string `json:"deploymentId"`
	Body       []byte `json:"body"`
}

// wanted is the digest that the deployment has in the present manifest; empty
// where it is not listed.
func (d *deployment) wanted() digest.Digest {
	return d.Revisions[len(d.Revisions)-1].Digest
}

// at gives the revision that a manifest version asked for, and the newest one
// with a document up to then: what a client has that is removing it.
func (d *deployment) at(version uint64) (asked revision, held digest.Digest, known bool) {
	for _, r := range d.Revisions {
		if r.Version > version {
			break
		}
		asked, known = r, true
		if r.Digest != "" {
			held = r.Digest
		}
	}
	return asked, held, known
}

// Report is a status report that was accepted.
type Report struct {
	Number int             `json:"number"` // 1, 2, 3 ... over all clients, in order of arrival
	Time   time.Time       `json:"time"`
	Client string          `json:"client"`
	Body   json.RawMessage `json:"status"` // as it was sent

	Status margo.Status `json:"-"`
}

func (s *state) load(file string, parse func([]byte) (*margo.Status, *problem)) error {
	s.file, s.Clients = file, map[string]*clientState{}
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("cannot read state: %w", err)
	}
	if err := json.Unmarshal(text, s); err != nil {
		return fmt.Errorf("cannot read state %s: %w", file, err)
	}
	for i := range s.Reports {
		status, refusal := parse(s.Reports[i].Body)
		if refusal != nil {
			return fmt.Errorf("cannot read state %s: report %d: %s", file, s.Reports[i].Number, refusal.detail)
		}
		s.Reports[i].Status = *status
	}
	return nil
}

// save writes the file; what it held before is there until the new one is whole.
func (s *state) save() error {
	if s.file == "" {
		return nil
	}
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return fmt.Errorf("cannot save state: %w", err)
	}
	if err := store.ReplaceFile(s.file, 0o600, bytes.NewReader(text)); err != nil {
		return fmt.Errorf("cannot save state: %w", err)
	}
	return nil
}

// client gives the record of a client, which exists from the first mention on.
func (s *state) client(id string) *clientState {
	c := s.Clients[id]
	if c == nil {
		c = &clientState{
			Version:     1, // nothing deployed: the first manifest there is
			Deployments: map[string]*deployment{},
			Documents:   map[digest.Digest]document{},
			Devices:     map[string]json.RawMessage{},
		}
		s.Clients[id] = c
	}
	return c
}

// listed gives the deployments of the present manifest in the order of their ids.
func (c *clientState) listed() []*deployment {
	var list []*deployment
	for _, id := range slices.Sorted(maps.Keys(c.Deployments)) {
		if d := c.Deployments[id]; d.wanted() != "" {
			list = append(list, d)
		}
	}
	return list
}

// key is how deployments are found: ids are the same in any case.
func key(id string) string { return strings.ToLower(id) }
