package main

import (
	"strings"
	"testing"
)

// Agent and shims have bounds idle and with three services, Docker has none.
func TestVerdictBoundsTheMemory(t *testing.T) {
	under := func(load string, pss int64) weight {
		return weight{Load: load, Holdings: []holding{
			{What: "agent", memory: memory{PSS: 1 << 40}}, // only the sum counts
			{What: "together", memory: memory{PSS: pss}},
		}}
	}
	for name, c := range map[string]struct {
		docker bool
		loads  []weight
		want   []string // in the error, none: there is no error
	}{
		"at the bounds":           {loads: []weight{under("idle", 22<<20), under("simple", 40<<20), under("realistic", 45<<20)}},
		"over both":               {loads: []weight{under("idle", 22<<20+1), under("realistic", 45<<20+1)}, want: []string{"load idle, want at most 22", "load realistic, want at most 45"}},
		"Docker":                  {docker: true, loads: []weight{under("idle", 60<<20), under("realistic", 80<<20)}},
		"one service, unlimited":  {loads: []weight{under("simple", 80<<20)}},
		"the three services only": {loads: []weight{under("idle", 20<<20), under("realistic", 46<<20)}, want: []string{"load realistic"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := report{Memory: []footprint{{Stack: "margolite", Ours: !c.docker, Loads: c.loads}}}
			err := r.verdict()
			if err == nil {
				if len(c.want) > 0 {
					t.Fatal("the verdict has no complaint")
				}
				return
			}
			if lines := strings.Split(err.Error(), "\n"); len(lines) != len(c.want) {
				t.Errorf("the verdict is %q, want %d lines", err, len(c.want))
			}
			for _, text := range c.want {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("the verdict %q lacks %q", err, text)
				}
			}
		})
	}
}
