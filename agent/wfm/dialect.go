package wfm

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/margolite/margolite/agent/margo"
)

// ErrNotOnboarded: the dialect needs a client id, and there is none yet.
var ErrNotOnboarded = errors.New("the client is not onboarded")

// endpoint is the URL of a resource of this client. Ids and digests need no escaping.
func (c *Client) endpoint(resource string) (*url.URL, error) {
	if !c.options.Dialect.Signed() {
		return c.base.JoinPath("api/v1", resource), nil
	}
	id := c.ClientID()
	if id == "" {
		return nil, ErrNotOnboarded
	}
	return c.base.JoinPath("api/v1/clients", id, resource), nil
}

// ClientID is the id that the WFM gave this client; empty: not onboarded, or rc.3.
func (c *Client) ClientID() string { return *c.clientID.Load() }

// Habits are departures from a dialect before rc.3 that a WFM's answers reveal and the device
// adapts to. They outlive a Client.
type Habits struct {
	// CapitalisedStates: it knows the states of a deployment by capitalised names.
	CapitalisedStates bool `json:"capitalisedStates,omitempty"`
	// ClientIDAsDevice: it takes the client id for the id of the device.
	ClientIDAsDevice bool `json:"clientIdAsDevice,omitempty"`
}

// Habits are those known so far.
func (c *Client) Habits() Habits { return *c.habits.Load() }

// learn notes a habit. Concurrent calls may lose one, which shows again.
func (c *Client) learn(change func(*Habits)) {
	h := c.Habits()
	change(&h)
	c.habits.Store(&h)
}

type form struct {
	method, resource string
}

const allCapabilities = "capabilities"

// capabilityForms are the ways to report capabilities. Before rc.3 the first report is a POST and
// later ones are PUTs; a client that does not know which it is tries PUT first (CAP-06, A-25).
// Some servers have the path of another revision.
func (c *Client) capabilityForms(deviceID string) []form {
	if !c.options.Dialect.Signed() {
		return []form{{http.MethodPut, "capabilities/" + deviceID}}
	}
	methods := []string{http.MethodPut, http.MethodPost}
	if c.fresh.Load() {
		slices.Reverse(methods)
	}
	resources := []string{"capabilities/" + deviceID, allCapabilities}
	if c.withoutID.Load() {
		slices.Reverse(resources)
	}
	var forms []form
	for _, resource := range resources {
		for _, method := range methods {
			forms = append(forms, form{method, resource})
		}
	}
	return forms
}

// statusForms are the ways to report a status: early servers of rc.1 have a singular path, and a
// WFM in the field a plural end. Which one a WFM has is found out once.
func (c *Client) statusForms(deploymentID string) []form {
	deploymentID = url.PathEscape(deploymentID) // a refused id may be anything
	forms := []form{
		{http.MethodPost, "deployments/" + deploymentID + "/status"},
		{http.MethodPost, "deployments/" + deploymentID + "/statuses"},
		{http.MethodPost, "deployment/" + deploymentID + "/status"},
	}
	if known := c.statusForm.Load(); known > 0 {
		return forms[known-1 : known]
	}
	switch c.options.Dialect {
	case margo.RC1:
		return forms
	case margo.RC2:
		return forms[:2]
	}
	return forms[:1]
}

// otherForm reports whether an answer means that the WFM has another form of the request: no such
// path, no such method, or nothing left to create.
func otherForm(used form, err error) bool {
	switch statusOf(err) {
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return true
	case http.StatusConflict:
		return used.method == http.MethodPost && strings.HasPrefix(used.resource, allCapabilities)
	}
	return false
}
