package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/margolite/margolite/store"
)

// withdrawTimeout bounds the attempt to take capabilities back: a device is given up
// or moved also where its WFM is out of reach.
const withdrawTimeout = 10 * time.Second

// Withdrawer takes the capabilities of a device back (CAP-06, GW-04).
type Withdrawer interface {
	Audience() string
	DeleteCapabilities(ctx context.Context, deviceID string) error
}

// acknowledged is what a WFM knows of this device.
type acknowledged struct {
	audience string // who acknowledged it
	digest   string // of the document
	device   string // its id; empty: no WFM knows it
}

// parseAcknowledged reads a record. The audience is whatever the way to the WFM calls it.
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

// Withdraw takes the capabilities of a device back from the WFM that has them, for a
// device that is given up or moved: once, and at best effort. The journal says whether
// the WFM heard it. It returns why it did not, and nothing where no WFM knows the device.
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

// withdraw takes capabilities back and gives the entry of the journal about it.
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

// Withdraw takes the capabilities of this device back from the present WFM before it
// becomes another one. See the function Withdraw.
func (a *Agent) Withdraw(ctx context.Context) {
	if left := a.silence.Hold().Left(); left > 0 {
		a.o.Logger.Warn("the WFM is not told that this device leaves: polling is paused", "for", left)
		return
	}
	if _, err := Withdraw(ctx, a.o.Store, a.o.WFM, a.o.Now()); err != nil {
		a.o.Logger.Warn("cannot withdraw the capabilities of this device", "error", err)
	}
}
