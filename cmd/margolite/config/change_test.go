package config_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/margolite/margolite/cmd/margolite/config"
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
		{"several parts", "poll: {interval: 5s}\nstate: {dir: /data}\nwfm: {url: 'https://wfm.example', tls: '1.2'}\n", config.Change{
			Parts:   []string{"device", "wfm", "poll", "state", "registries"},
			Restart: []string{"state.dir", "registries"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			old, now := parse(t, base), parse(t, test.file)
			if diff := cmp.Diff(test.want, now.Changed(old)); diff != "" {
				t.Errorf("the change differs (-want +got):\n%s", diff)
			}
		})
	}
}

// No field of a configuration is forgotten: whichever differs, exactly its
// section is named, and a key of what cannot be taken over.
func TestEveryFieldIsCompared(t *testing.T) {
	restart := []string{"state", "runtime", "policy.Keys", "registries", "metrics", "collector", "log.Format"} // sections, or fields of one
	live := []string{"runtime.Settle", "runtime.MaxTimeout"}                                                   // but not these
	c := reflect.TypeFor[config.Config]()
	for i := range c.NumField() {
		f := c.Field(i)
		if !f.IsExported() {
			continue
		}
		section := strings.ToLower(f.Name)
		fields := []int{-1} // the section itself, where it is no struct
		if f.Type.Kind() == reflect.Struct {
			fields = nil
			for j := range f.Type.NumField() {
				fields = append(fields, j)
			}
		}
		for _, j := range fields {
			now := config.Default()
			v, name := reflect.ValueOf(now).Elem().Field(i), section
			if j >= 0 {
				v, name = v.Field(j), section+"."+f.Type.Field(j).Name
			}
			set(t, v)
			changed := now.Changed(config.Default())
			if !slices.Equal(changed.Parts, []string{section}) {
				t.Errorf("%s differs, but these parts are named: %q", name, changed.Parts)
			}
			if needed := (slices.Contains(restart, section) || slices.Contains(restart, name)) && !slices.Contains(live, name); needed != (len(changed.Restart) == 1) {
				t.Errorf("%s differs, but these keys need a restart: %q", name, changed.Restart)
			}
		}
	}
}

// set gives v another value.
func set(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.Float64:
		v.SetFloat(v.Float() + 1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		m.SetMapIndex(reflect.ValueOf("x"), reflect.Zero(v.Type().Elem()))
		v.Set(m)
	case reflect.Struct:
		set(t, v.Field(0))
	default:
		t.Fatalf("no other value of %s is known", v.Type())
	}
}

func parse(t *testing.T, file string) *config.Config {
	t.Helper()
	c, err := config.Parse("f", []byte(file))
	check(t, err)
	return c
}
