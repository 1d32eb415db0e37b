package config_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/test/expect"
)

func TestChangesAreNamedWithWhatNeedsARestart(t *testing.T) {
	const base = `
device: {id: edge-01, labels: {a: [1, 2]}}
wfm: {url: "https://wfm.example"}
registries: {"a.example": {mirrors: [b.example]}}
`
	for _, test := range []struct {
		name, file string
		want       config.Change
	}{
		{"nothing", base, config.Change{}},
		{"nothing but the way it is written", strings.ReplaceAll(base, "edge-01", `"edge-01"`) + "policy: {approval: none}\n", config.Change{}},
		{"the device", strings.ReplaceAll(base, "[1, 2]", "[1, 3]"), config.Change{Parts: []string{"device"}}},
		{"a directory", base + "state: {run: /tmp/run}\n", config.Change{Parts: []string{"state"}, Restart: []string{"state.run"}}},
		{"the runtime", base + "runtime: {namespace: other, logs: {maxFile: 3}}\n", config.Change{Parts: []string{"runtime"}, Restart: []string{"runtime.namespace", "runtime.logs"}}},
		{"keys among others", base + "policy: {keys: [/a], approval: all}\nmetrics: {interval: 5m}\ncollector: {protocol: grpc}\nlog: {level: debug, format: json}\n", config.Change{
			Parts:   []string{"policy", "metrics", "collector", "log"},
			Restart: []string{"policy.keys", "metrics", "collector", "log.format"},
		}},
		{"several parts", "poll: {interval: 5s}\nstate: {dir: /data}\nwfm: {url: 'https://wfm.example', tls: '1.2'}\n", config.Change{
			Parts:   []string{"device", "wfm", "poll", "state", "registries"},
			Restart: []string{"state.dir", "registries"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			expect.Equal(t, parse(t, test.file).Changed(parse(t, base)), test.want, "change")
		})
	}
}

// Directories and the runtime are opened when the agent starts: of their keys none is
// taken over as it runs but these.
func TestWhatIsOpenedAtTheStartNeedsARestart(t *testing.T) {
	live := []string{"runtime.settle", "runtime.maxTimeout"}
	for section, of := range map[string]reflect.Type{"state": reflect.TypeFor[config.State](), "runtime": reflect.TypeFor[config.Runtime]()} {
		for i := range of.NumField() {
			tag := of.Field(i).Tag
			key := section + "." + tag.Get("yaml")
			if restart := tag.Get("restart") == "true"; restart == slices.Contains(live, key) {
				t.Errorf("%s needs a restart: %v", key, restart)
			}
		}
	}
}

func parse(t *testing.T, file string) *config.Config {
	t.Helper()
	return expect.Value(config.Parse("f", []byte(file)))(t)
}
