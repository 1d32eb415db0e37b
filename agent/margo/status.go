package margo

import (
	"fmt"
	"slices"
	"strings"
)

// MaxStatusBytes bounds a status report.
const MaxStatusBytes = 256 << 10

// MaxFaultMessage bounds, in bytes, an error message in a report.
const MaxFaultMessage = 1024

// State is the state of a deployment or of a component on the wire (ST-03).
type State string

// The states of a deployment or component.
const (
	Pending    State = "pending"
	Installing State = "installing"
	Installed  State = "installed"
	Failed     State = "failed"
	Removing   State = "removing"
	Removed    State = "removed"
)

// states gives all states, the most severe first. The published order has "removing" twice; A-01
// tells which one is meant to be "removed".
func states() []State { return []State{Failed, Removing, Installing, Pending, Removed, Installed} }

// OverallState is the most severe state of the components (ST-04), and Installed without any.
func OverallState(components []ComponentStatus) State {
	for _, state := range states() {
		if slices.ContainsFunc(components, func(c ComponentStatus) bool { return c.State == state }) {
			return state
		}
	}
	return Installed
}

// Status is the report of one deployment.
type Status struct {
	DeploymentID   string // as the manifest spells it
	DeviceID       string // with full hierarchy (ST-06); always sent
	AdoptedVersion uint64 // adoptedManifestVersion (ST-12)
	State          State  // the OverallState of the components, if there are any (ST-04)
	Error          *Fault // required where State is Failed (ST-09)

	// Components has one entry per component of the document (ST-05); none only if the document
	// could not be read.
	Components []ComponentStatus
}

// ComponentStatus is the state of one component.
type ComponentStatus struct {
	Name  string `json:"name,omitempty"`
	State State  `json:"state"`
	Error *Fault `json:"error,omitempty"` // required where State is Failed (ST-09)
}

// Fault is the error object of a status report. All three members are required (ST-07).
type Fault struct {
	Code    string `json:"code"`
	Source  string `json:"source,omitempty"` // metadata.name of the deployment, or the component's name (ST-08)
	Message string `json:"message"`          // without secrets; on the wire one line of at most MaxFaultMessage bytes
}

type statusBody struct {
	APIVersion     string            `json:"apiVersion,omitempty"` // before rc.3, as is kind
	Kind           string            `json:"kind,omitempty"`
	DeploymentID   string            `json:"deploymentId"`
	DeviceID       string            `json:"deviceId,omitempty"`
	AdoptedVersion uint64            `json:"adoptedManifestVersion,omitempty"` // rc.3
	Status         ComponentStatus   `json:"status"`                           // without a name
	Components     []ComponentStatus `json:"components"`
}

// Marshal validates the report as strictly as a WFM may and writes its rc.3 body. The same report
// gives the same bytes.
func (s Status) Marshal() ([]byte, error) { return s.MarshalFor(RC3, false) }

// MarshalFor is Marshal for any revision, and validates for rc.3. Bodies before rc.3 name their
// kind (ST-18) and not the manifest; before rc.2 also neither the device nor the source of an
// error. Early WFMs of rc.1 want the states capitalised.
func (s Status) MarshalFor(revision Revision, capitalised bool) ([]byte, error) {
	body := statusBody{
		DeploymentID:   s.DeploymentID,
		DeviceID:       s.DeviceID,
		AdoptedVersion: s.AdoptedVersion,
		Status:         ComponentStatus{State: s.State, Error: s.Error.shown()},
		Components:     make([]ComponentStatus, 0, len(s.Components)),
	}
	for _, c := range s.Components {
		body.Components = append(body.Components, ComponentStatus{c.Name, c.State, c.Error.shown()})
	}
	data, err := marshalJSON(body)
	if err != nil {
		return nil, fmt.Errorf("cannot marshal deployment status: %w", err)
	}
	if _, err := ParseStatus(data); err != nil {
		return nil, fmt.Errorf("cannot marshal deployment status: %w", err)
	}
	if revision == RC3 {
		return data, nil
	}
	body.APIVersion, body.Kind, body.AdoptedVersion = statusVersion, statusKind, 0
	if revision == RC1 {
		body.DeviceID = ""
		body.Status.early(capitalised)
		for i := range body.Components {
			body.Components[i].early(capitalised)
		}
	}
	if data, err = marshalJSON(body); err != nil {
		return nil, fmt.Errorf("cannot marshal deployment status: %w", err)
	}
	return data, nil
}

// early removes what rc.1 has no member for. The fault must be a copy, as shown makes one.
func (c *ComponentStatus) early(capitalised bool) {
	if c.Error != nil {
		c.Error.Source = ""
	}
	if capitalised {
		c.State = State(strings.ToUpper(string(c.State[:1]))) + c.State[1:]
	}
}

// shown is the fault as it may leave the device: others' messages can be of any length and form.
func (f *Fault) shown() *Fault {
	if f == nil {
		return nil
	}
	return &Fault{Code: f.Code, Source: f.Source, Message: Shown(f.Message, MaxFaultMessage)}
}

// ParseStatus reads a report as strictly as a WFM has to. Members unknown to rc.3 are ignored, as
// its schema allows. Only a reader of the document can tell whether each of its components has an
// entry (ST-05).
func ParseStatus(body []byte) (*Status, error) {
	return accept("deployment status", parseJSON, body, limits{bytes: MaxStatusBytes, depth: 16, nodes: 2048}, (*reader).status)
}

func (r *reader) status(n node) *Status {
	if !r.is(object, "ST-01", n) {
		return nil
	}
	if kind := n.member("kind"); kind.given() { // of earlier revisions, allowed beside the rest
		r.oneOf("ST-18", kind, "DeploymentStatusManifest")
	}
	id := n.member("deploymentId")
	s := &Status{
		DeploymentID:   r.text("A-60", id),
		AdoptedVersion: r.version("ST-12", n.member("adoptedManifestVersion")),
	}
	if s.DeploymentID != "" && !canReport(s.DeploymentID) {
		r.refuse("A-60", id, "must be at most %d printable ASCII characters, is %.80q", maxDeploymentID, s.DeploymentID)
	}
	if device := n.member("deviceId"); device.given() {
		s.DeviceID = r.deviceID("ST-06", device)
	}
	if overall := n.member("status"); r.is(object, "ST-03", overall) {
		s.State, s.Error = r.outcome(overall)
	}
	components := n.member("components")
	if !r.is(list, "ST-05", components) {
		return s
	}
	if len(components.items) > MaxComponents {
		r.refuse("ST-05", components, "has more than %d entries", MaxComponents)
		return s
	}
	seen := make(map[string]bool, len(components.items))
	components.each(func(n node) {
		if !r.is(object, "ST-05", n) {
			return
		}
		c := ComponentStatus{Name: r.text("ST-05", n.member("name"))}
		c.State, c.Error = r.outcome(n)
		if seen[c.Name] {
			r.refuse("ST-05", n.member("name"), "%.80q occurs twice", c.Name)
		}
		seen[c.Name] = true
		s.Components = append(s.Components, c)
	})
	if want := OverallState(s.Components); len(s.Components) > 0 && len(r.refused) == 0 && s.State != want {
		r.refuse("ST-04", n.member("status").member("state"), "must be %s, the most severe state of the components, is %s", want, s.State)
	}
	return s
}

func (r *reader) outcome(n node) (State, *Fault) {
	names := make([]string, 0, len(states()))
	for _, state := range states() {
		names = append(names, string(state))
	}
	state := State(r.oneOf("ST-03", n.member("state"), names...))
	fault := r.fault(n.member("error"))
	if state == Failed && fault == nil {
		r.refuse("ST-09", n.member("error"), "is missing, must accompany the state failed")
	}
	return state, fault
}

// fault reads an error object. One of three empty strings, as in a published example, counts as
// none; any other must have all three (ST-07).
func (r *reader) fault(n node) *Fault {
	if !r.isOptional(object, "ST-07", n) {
		return nil
	}
	code, source, message := n.member("code"), n.member("source"), n.member("message")
	if slices.IndexFunc([]node{code, source, message}, func(n node) bool {
		return n.given() && (n.kind != text || n.literal != "")
	}) < 0 {
		return nil
	}
	return &Fault{
		Code:    r.text("ST-07", code),
		Source:  r.text("ST-07", source),
		Message: r.text("ST-07", message),
	}
}

func (r *reader) deviceID(requirement string, n node) string {
	id := r.text(requirement, n)
	if id != "" && !isDeviceID(id) {
		r.refuse(requirement, n, "must be RFC 3986 unreserved characters, with / for hierarchy, is %.80q", id)
	}
	return id
}
