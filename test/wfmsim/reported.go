package wfmsim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
)

// Device is the capabilities document of one device.
type Device struct {
	Client string          `json:"client"`
	ID     string          `json:"deviceId"`
	Body   json.RawMessage `json:"capabilities"` // as it was sent
}

// Statuses gives the reports of a deployment in the order of their arrival; of
// all deployments where id is empty.
func (s *Server) Statuses(id string) []Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.of(id)
}

func (s *state) of(id string) []Report {
	list := []Report{}
	for _, r := range s.Reports {
		if id == "" || margo.SameID(r.Status.DeploymentID, id) {
			list = append(list, r)
		}
	}
	return list
}

// WaitStatus returns when enough says so of a deployment's reports. It is asked
// at once and again after each report.
func (s *Server) WaitStatus(ctx context.Context, id string, enough func([]Report) bool) error {
	err := s.wait(ctx, "status of "+id, func() bool { return enough(s.Statuses(id)) })
	if err == nil {
		return nil
	}
	said := "nothing"
	if reports := s.Statuses(id); len(reports) > 0 {
		said = string(reports[len(reports)-1].Body)
	}
	return fmt.Errorf("%w; its last report: %s", err, said)
}

// WaitState returns when the newest report of a deployment has the state, for
// the manifest version given or a later one. Before RC3 reports do not say which
// version they are about, and any will do.
func (s *Server) WaitState(ctx context.Context, id string, state margo.State, version uint64) error {
	return s.WaitStatus(ctx, id, func(reports []Report) bool {
		if len(reports) == 0 {
			return false
		}
		newest := reports[len(reports)-1].Status
		return newest.State == state && (newest.AdoptedVersion >= version || s.options.Revision != margo.RC3)
	})
}

// Devices gives the capabilities that clients have reported, all where client
// is empty.
func (s *Server) Devices(client string) []Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []Device{}
	for _, id := range slices.Sorted(maps.Keys(s.state.Clients)) {
		if client != "" && client != id {
			continue
		}
		devices := s.state.Clients[id].Devices
		for _, device := range slices.Sorted(maps.Keys(devices)) {
			list = append(list, Device{Client: id, ID: device, Body: devices[device]})
		}
	}
	return list
}

// WaitDevice returns when the client has reported a device, and gives what it
// reported.
func (s *Server) WaitDevice(ctx context.Context, client, device string) (reported Device, err error) {
	err = s.wait(ctx, "capabilities of "+device, func() bool {
		for _, d := range s.Devices(client) {
			if d.ID == device {
				reported = d
			}
		}
		return reported.Body != nil
	})
	return reported, err
}

// wait returns when enough says so; it asks after each change of the state.
func (s *Server) wait(ctx context.Context, what string, enough func() bool) error {
	for {
		s.mu.Lock()
		changed := s.changed // before asking, so that no change is missed
		s.mu.Unlock()
		if enough() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("cannot wait for %s: %w", what, ctx.Err())
		}
	}
}

// describe stores the capabilities of a device; unless it may be a first report,
// of one that has reported before.
func (s *Server) describe(client, device, id string, body []byte, first bool) (created bool, refusal *problem) {
	if id != device {
		return false, semantic("properties.id", fmt.Sprintf("is %q, the path says %q", id, device))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	devices := s.state.client(client).Devices
	// A gateway reports itself before the devices behind it (GW-04).
	if i := strings.LastIndex(device, "/"); i >= 0 && devices[device[:i]] == nil {
		return false, notFound(margo.ProblemGatewayNotFound, "Gateway not found",
			"No gateway was found for the given child-device deviceId.")
	}
	created = devices[device] == nil
	if created && !first {
		return false, notFound(margo.ProblemDeviceNotFound, "Device not found",
			"This device has reported nothing yet: its first report is a POST.")
	}
	devices[device] = body
	return created, unsaved(s.saved())
}

// forget removes a device and, with a gateway, the devices behind it.
func (s *Server) forget(client, device string) *problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	devices := s.state.client(client).Devices
	if devices[device] == nil {
		return notFound(margo.ProblemDeviceNotFound, "Device not found",
			"No device with the given deviceId was found for the client.")
	}
	maps.DeleteFunc(devices, func(id string, _ json.RawMessage) bool {
		return id == device || strings.HasPrefix(id, device+"/")
	})
	return unsaved(s.saved())
}

// report stores a status report.
func (s *Server) report(client, id string, status *margo.Status, body []byte) (created bool, refusal *problem) {
	if !margo.SameID(status.DeploymentID, id) {
		return false, semantic("deploymentId", fmt.Sprintf("is %q, the path says %q", status.DeploymentID, id))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if refusal := s.state.client(client).contradicts(status, s.options.Revision); refusal != nil {
		return false, refusal
	}
	number, now := 1, time.Now()
	if n := len(s.state.Reports); n > 0 {
		number = s.state.Reports[n-1].Number + 1
	}
	created = !slices.ContainsFunc(s.state.Reports, func(r Report) bool {
		return r.Client == client && margo.SameID(r.Status.DeploymentID, id)
	})
	s.state.Reports = append(s.state.Reports, Report{Number: number, Time: now, Client: client, Body: body, Status: *status})
	if extra := len(s.state.Reports) - maxReports; extra > 0 {
		s.state.Reports = slices.Delete(s.state.Reports, 0, extra)
	}
	return created, unsaved(s.saved())
}

// contradicts checks a report against what this client was given.
func (c *clientState) contradicts(status *margo.Status, revision margo.Revision) *problem {
	d := c.Deployments[key(status.DeploymentID)]
	if d == nil {
		return blank(http.StatusNotFound, "Deployment "+status.DeploymentID+" was never given to this client.")
	}
	if revision != margo.RC3 {
		return c.contradictsAll(d, status, revision)
	}
	asked, held, known := d.at(status.AdoptedVersion)
	newest := max(c.Version, d.Revisions[len(d.Revisions)-1].Version)
	switch {
	case status.AdoptedVersion > newest:
		return semantic("adoptedManifestVersion", fmt.Sprintf("is %d, the newest manifest is %d", status.AdoptedVersion, newest))
	case !known:
		return semantic("adoptedManifestVersion", fmt.Sprintf("is %d, this deployment begins with %d", status.AdoptedVersion, d.Revisions[0].Version))
	case asked.Digest == "" && (status.State == margo.Installing || status.State == margo.Installed):
		return semantic("status.state", fmt.Sprintf("is %q, manifest %d does not list this deployment (ST-12)", status.State, status.AdoptedVersion))
	}
	return c.contradictsDocument(held, status, revision)
}

// contradictsAll checks a report that does not say which revision it is about:
// it has to fit one of them.
func (c *clientState) contradictsAll(d *deployment, status *margo.Status, revision margo.Revision) (refusal *problem) {
	for _, r := range slices.Backward(d.Revisions) {
		if r.Digest == "" {
			continue
		}
		if refusal = c.contradictsDocument(r.Digest, status, revision); refusal == nil {
			return nil
		}
	}
	return refusal
}

func (c *clientState) contradictsDocument(held digest.Digest, status *margo.Status, revision margo.Revision) *problem {
	document, err := margo.ParseDeployment(c.Documents[held].Body)
	if err != nil {
		return nil // a document that cannot be read has no components to name
	}
	var want, got []string
	for _, component := range document.Components {
		want = append(want, component.Name)
	}
	for _, component := range status.Components {
		got = append(got, component.Name)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		return semantic("components", fmt.Sprintf("name %q, the revision adopted with manifest %d has %q (ST-05)", got, status.AdoptedVersion, want))
	}
	if revision == margo.RC1 {
		return nil // errors have no source there
	}
	return c.misattributed(document, status)
}

// misattributed checks that errors name their source (ST-08): the deployment or
// the component, or a gateway that speaks for them.
func (c *clientState) misattributed(document *margo.Deployment, status *margo.Status) *problem {
	wrong := func(fault *margo.Fault, source string) bool {
		return fault != nil && fault.Source != source && c.Devices[fault.Source] == nil
	}
	if wrong(status.Error, document.Name) {
		return semantic("status.error.source", fmt.Sprintf("is %q, the deployment is %q (ST-08)", status.Error.Source, document.Name))
	}
	for i, component := range status.Components {
		if wrong(component.Error, component.Name) {
			return semantic(fmt.Sprintf("components.%d.error.source", i),
				fmt.Sprintf("is %q, the component is %q (ST-08)", component.Error.Source, component.Name))
		}
	}
	return nil
}

// unsaved is the answer where the disk does not take the state.
func unsaved(err error) *problem {
	if err == nil {
		return nil
	}
	return blank(http.StatusInternalServerError, err.Error())
}
