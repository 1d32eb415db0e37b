package uplink

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
)

const (
	bundleSetting = "trust-bundle" // what identity.BundleSource keeps
	clientSetting = "client"       // the client id that a WFM gave
	timeSetting   = "time"         // Unix seconds of the last certain time
)

// PassingSettings change by themselves and can be found out again, see [store.Options].
func PassingSettings() []string { return []string{timeSetting} }

// LastingSettings names records that must never go back to an earlier state, and ClientSettings
// those that identify this device as a client of the WFM.
func LastingSettings() []string { return []string{bundleSetting, timeSetting} }
func ClientSettings() []string  { return []string{clientSetting} }

// keeper keeps the fetched trust bundle (ID-24).
type keeper struct{ records Records }

// Keep implements identity.Keeper.
func (k keeper) Keep(record []byte) error {
	return k.records.Commit("trust bundle", store.Change{Settings: map[string][]byte{bundleSetting: record}})
}

// Kept implements identity.Keeper.
func (k keeper) Kept() ([]byte, error) {
	record, _, err := k.records.Setting(bundleSetting)
	return record, err
}

// client is what a WFM before rc.3 and this device know of each other.
type client struct {
	URL         string     `json:"url"`
	ID          string     `json:"id"`
	Certificate string     `json:"certificate"`    // digest of the onboarded certificate
	Root        []byte     `json:"root,omitempty"` // the WFM's own anchor, if it has one
	Habits      wfm.Habits `json:"habits,omitzero"`
}

func readClient(r Records) (c client, err error) {
	record, known, err := r.Setting(clientSetting)
	if err != nil || !known {
		return client{}, err
	}
	if err := json.Unmarshal(record, &c); err != nil {
		return client{}, fmt.Errorf("cannot read the client id: %w", err)
	}
	return c, nil
}

func (c client) keep(r Records) error {
	record, err := json.Marshal(c)
	if err == nil {
		err = r.Commit("client id", store.Change{Settings: map[string][]byte{clientSetting: record}})
	}
	if err != nil {
		return fmt.Errorf("cannot save the client id: %w", err)
	}
	return nil
}

// keepTimeEvery is how often the present is recorded: a device without a clock starts with a time
// that is at most this much older.
const keepTimeEvery = 24 * time.Hour

// KnownTime is the last certain time, a lower bound for the next start; zero before the first.
func KnownTime(r Records) (time.Time, error) {
	record, known, err := r.Setting(timeSetting)
	if err != nil || !known {
		return time.Time{}, err
	}
	seconds, err := strconv.ParseInt(string(record), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("cannot read the last known time: %w", err)
	}
	return time.Unix(seconds, 0), nil
}

// keepTime records the present from time to time; a failure is retried the next time.
func keepTime(r Records, now time.Time) error {
	// An unreadable record is useless to the next start too, and is replaced.
	if known, _ := KnownTime(r); now.Sub(known) < keepTimeEvery {
		return nil
	}
	err := r.Commit("time", store.Change{Settings: map[string][]byte{timeSetting: strconv.AppendInt(nil, now.Unix(), 10)}})
	if err != nil {
		return fmt.Errorf("cannot save the last known time: %w", err)
	}
	return nil
}
