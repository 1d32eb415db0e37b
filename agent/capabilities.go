package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/store"
)

// Capabilities is the document that is, or would be, reported.
func (a *Agent) Capabilities(context.Context) (json.RawMessage, error) {
	return Describe(a.settings.Load().Device, a.o.Facts, a.o.Logger)
}

// Describe writes a device's capabilities document (CAP-02, CAP-04) from its configuration and,
// where that is silent, from the machine.
func Describe(d Device, discover func() (capability.Facts, error), logger *slog.Logger) (json.RawMessage, error) {
	facts := d.Offer.Of(look(discover, logger))
	hosting := &margo.Hosting{
		CPUs:            []margo.CPU{{Cores: facts.CPU.Cores, Architecture: margo.Architecture(facts.CPU.Architecture)}},
		Memory:          margo.Quantity(facts.Memory),
		Storage:         margo.Quantity(facts.Storage),
		Peripherals:     []margo.Peripheral{},
		Interfaces:      []margo.Interface{},
		OTelCollector:   true,
		Runtimes:        []string{"oci"},
		DeploymentTypes: []margo.DeploymentType{margo.Compose},
	}
	var extension extension
	for _, p := range facts.Peripherals {
		one := margo.Peripheral{Type: string(p.Kind), Manufacturer: p.Vendor, Model: p.Model}
		if p.Kind == capability.NPU { // the standard has no type for it
			extension.NPUs = append(extension.NPUs, npu{p.Vendor, p.Model})
			continue
		}
		hosting.Peripherals = append(hosting.Peripherals, one)
	}
	extension.CPU.Variant = facts.CPU.Variant
	for _, i := range facts.Interfaces {
		if kind := (margo.Interface{Type: string(i.Kind)}); !slices.Contains(hosting.Interfaces, kind) {
			hosting.Interfaces = append(hosting.Interfaces, kind)
		}
	}
	c := margo.Capabilities{Labels: d.Labels, Properties: margo.Properties{
		ID:           d.ID,
		Vendor:       cmp.Or(d.Vendor, facts.Identity.Vendor, "unknown"),
		ModelNumber:  cmp.Or(d.ModelNumber, facts.Identity.Model, "unknown"),
		SerialNumber: cmp.Or(d.SerialNumber, facts.Identity.SerialNumber, facts.Identity.MachineID, facts.Identity.HardwareAddress, "unknown"),
		Hosting:      hosting,
	}}
	if extension.CPU.Variant != "" || extension.NPUs != nil {
		body, _ := json.Marshal(extension) // cannot fail: only texts
		c.Extensions = map[string]json.RawMessage{extensionKey: body}
	}
	body, err := c.Marshal()
	if err != nil {
		return nil, fmt.Errorf("cannot describe the capabilities of this device: %w", err)
	}
	return body, nil
}

func look(discover func() (capability.Facts, error), logger *slog.Logger) capability.Facts {
	facts, err := discover()
	if err != nil {
		// Facts that could not be read are missing; the rest is worth reporting.
		logger.Debug("capabilities are incomplete", "error", err)
	}
	return facts
}

// extensionKey names what this agent reports beyond the standard (EXT-02); a WFM that does not
// know it ignores it (EXT-01).
const extensionKey = "x-margolite-extensions"

type extension struct {
	CPU struct {
		Variant string `json:"variant"` // of 32-bit ARM: v6, v7, v8
	} `json:"cpu,omitzero"`
	NPUs []npu `json:"npus,omitempty"`
}

type npu struct {
	Manufacturer string `json:"manufacturer,omitempty"`
	Model        string `json:"model,omitempty"`
}

const maxDeviceID = 128

// DeviceID makes an id for a device whose configuration gives none, from the machine's serial
// number, machine id, hardware address or host name; "" if it has none of them. Characters that
// the wire does not allow become dashes (CAP-07).
func DeviceID(i capability.Identity) string {
	host := i.Hostname
	if slices.Contains([]string{"(none)", "localhost", "localhost.localdomain"}, host) {
		host = "" // the host has no name of its own
	}
	id := cmp.Or(i.SerialNumber, i.MachineID, i.HardwareAddress, host)
	id = strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || r == '_' || r == '~' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '-'
	}, id)
	return strings.Trim(id[:min(len(id), maxDeviceID)], ".-")
}

// withdrawTimeout bounds the request to withdraw capabilities: a device can be decommissioned or
// moved even while its WFM is unreachable.
const withdrawTimeout = 10 * time.Second

// Withdrawer withdraws the capabilities of a device (CAP-06, GW-04).
type Withdrawer interface {
	Audience() string
	DeleteCapabilities(ctx context.Context, deviceID string) error
}

type acknowledged struct {
	audience string // the WFM that acknowledged it
	digest   string // of the document
	device   string // its id; empty: no WFM knows it
}

// parseAcknowledged reads a record. The audience is named as [WFM.Audience] names it.
func parseAcknowledged(record []byte) (a acknowledged) {
	text := string(record)
	if i := strings.LastIndexByte(text, ' '); i >= 0 {
		text, a.device = text[:i], text[i+1:]
	}
	if i := strings.LastIndexByte(text, ' '); i >= 0 {
		a.audience, a.digest = text[:i], text[i+1:]
	}
	return a
}

func (a acknowledged) record() []byte { return []byte(a.audience + " " + a.digest + " " + a.device) }

// Withdraw withdraws the capabilities of a device that is decommissioned or moved from the WFM
// that has them. It makes one attempt and records the outcome in the journal. The error is why
// the WFM did not take it; if no WFM knows the device, there is nothing to do.
func Withdraw(ctx context.Context, s *store.Store, w Withdrawer, now time.Time) (told bool, err error) {
	record, _, err := s.Setting(capabilitiesSetting)
	if err != nil {
		return false, fmt.Errorf("cannot read which capabilities were reported: %w", err)
	}
	known := parseAcknowledged(record)
	if known.device == "" {
		return false, nil
	}
	entry, err := withdraw(ctx, w, known, now)
	commitErr := s.Commit("capabilities", store.Change{
		Settings: map[string][]byte{capabilitiesSetting: nil}, Journal: []store.Entry{entry},
	})
	return err == nil, errors.Join(err, commitErr)
}

func withdraw(ctx context.Context, w Withdrawer, known acknowledged, now time.Time) (store.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	var err error
	if w.Audience() != known.audience {
		err = errors.New("it is no longer the configured WFM")
	} else {
		err = w.DeleteCapabilities(ctx, known.device)
	}
	e := store.Entry{Time: now, Kind: noteWithdrawn, Text: fmt.Sprintf("%s was told that device %s is decommissioned", known.audience, known.device)}
	if err != nil {
		err = fmt.Errorf("%s was not told that device %s is decommissioned: %w", known.audience, known.device, err)
		e.Kind, e.Text = noteNotWithdrawn, err.Error()
	}
	return e, err
}

// Withdraw is the function Withdraw for this device's present WFM, before that changes.
func (a *Agent) Withdraw(ctx context.Context) {
	if left := a.silence.Hold().Left(); left > 0 {
		a.o.Logger.Warn("the WFM is not told that this device leaves: polling is paused", "for", left)
		return
	}
	if _, err := Withdraw(ctx, a.o.Store, a.o.WFM, a.o.Now()); err != nil {
		a.o.Logger.Warn("cannot withdraw the capabilities of this device", "error", err)
	}
}
