package agent

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/store"
)

// Settings are what may change while an Agent runs. All are required but URL, the windows,
// MaxTimeout, ImageKeys and Packages.
type Settings struct {
	Device  Device
	URL     string        // of the WFM: for people, and to tell one WFM from another
	Poll    pace.Rules    // when to call the WFM
	Settle  time.Duration // for how long a service must run to count as installed
	Gate    Gate
	Reports Reports // what the WFM is told besides the outcome of changes
	// MaxTimeout bounds any component's installation (AD-08); 0: 2 hours.
	MaxTimeout time.Duration
	// Basis identifies the configuration and keys that deployments are judged by: when it
	// changes, those refused for good are judged again.
	Basis string
	// ImageKeys are the keys that images have to be signed by; nil: they need not be signed.
	ImageKeys image.Keyring
	// Packages is the trust in signers of registry packages, by the agent's clock; nil: none
	// needed.
	Packages *image.Trust
}

// Reports says what the WFM is told besides the outcome of changes.
type Reports struct {
	Running bool          `yaml:"running"`                     // that a service which was installed is in trouble, and that it is well again
	Grace   time.Duration `yaml:"grace" least:"1s" most:"24h"` // for how long it has to be in trouble
	// Interval is how often every deployment's state is reported again, with a poll, although
	// nothing has changed (ST-10); 0: never.
	Interval time.Duration `yaml:"interval" least:"0s" most:"744h"`
	// Reasons: report pending deployments' reasons (ST-11) as errors with codes that mean none.
	Reasons bool `yaml:"reasons"`
}

// settings are replaced as a whole, so that one Load gives one consistent version.
type settings struct{ atomic.Pointer[Settings] }

// Configure replaces the settings without touching what runs or interrupting work. The WFM is
// polled soon, the gate is asked again, and failures are retried. What the WFM asked for remains
// in force unless it is another WFM now.
func (a *Agent) Configure(s Settings) {
	a.settings.Store(&s)
	a.Projects.configure(s.Settle)
	a.silence.Configure(s.URL, s.Poll.Downtime)
	poke(a.poller.configured)
	a.reconciler.again()
}

// Wake says that something that may have kept the WFM out of reach has changed, such as the
// network or a certificate: it is polled soon. What the WFM asked for remains in force.
func (a *Agent) Wake() { poke(a.poller.woken) }

// Silence holds back every request to the WFM; it is shared with other callers.
func (a *Agent) Silence() *pace.Silence { return a.silence }

// PassingSettings are the names of the agent's records that change by themselves and can be found
// out again, see [store.Options].
func PassingSettings() []string { return []string{capabilitiesSetting, silenceSetting} }

// silenceSetting names the record of how long the WFM is not to be called.
const silenceSetting = "silence"

// briefSilence is the longest silence kept only in the machine's memory. A WFM that cannot answer
// for weeks asks for silence with each answer, which must not wear out the flash; after a boot
// the device does not poll at once anyway.
const briefSilence = 10 * time.Minute

// silenceRecord keeps a pace.Silence over a restart of the agent, and a long one over a reboot.
type silenceRecord struct {
	store *store.Store
	file  string // in memory, of a brief silence
}

func (r silenceRecord) Load() ([]byte, error) {
	if value, err := os.ReadFile(r.file); err == nil {
		return value, nil
	}
	value, _, err := r.store.Setting(silenceSetting)
	return value, err
}

func (r silenceRecord) Keep(value []byte, lasts time.Duration) error {
	if value != nil && lasts <= briefSilence {
		return store.ReplaceFile(r.file, 0o600, bytes.NewReader(value))
	}
	if err := os.Remove(r.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if former, known, err := r.store.Setting(silenceSetting); err == nil && value == nil && (!known || len(former) == 0) {
		return nil
	}
	return r.store.Commit("silence", store.Change{Settings: map[string][]byte{silenceSetting: value}})
}
