package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// memory rests and then samples.
func (s *subject) memory(ctx context.Context) ([]holding, error) {
	if err := pause(ctx, s.Warmup); err != nil {
		return nil, err
	}
	var samples [][]holding
	for range s.Samples {
		if err := pause(ctx, s.Over/time.Duration(s.Samples)); err != nil {
			return nil, err
		}
		sample, err := s.sample()
		if err != nil {
			return nil, err
		}
		if len(samples) > 0 && !sameProcesses(samples[0], sample) {
			return nil, fmt.Errorf("processes came or went while memory was measured: %v, then %v", samples[0], sample)
		}
		samples = append(samples, sample)
	}
	result := slices.Clone(samples[0])
	for i := range result {
		of := func(field func(memory) int64) int64 {
			var values []int64
			for _, sample := range samples {
				values = append(values, field(sample[i].memory))
			}
			return median(values)
		}
		result[i].memory = memory{
			RSS:       of(func(m memory) int64 { return m.RSS }),
			PSS:       of(func(m memory) int64 { return m.PSS }),
			Anonymous: of(func(m memory) int64 { return m.Anonymous }),
		}
	}
	return result, nil
}

// sample is the memory of each kind of process now, and of all together.
func (s *subject) sample() ([]holding, error) {
	kinds := []struct {
		name string
		pids []int
	}{
		{"agent", []int{s.Agent()}},
		{"containerd", s.containerd()},
		{"shims", s.Shims()},
	}
	var all []holding
	sum := holding{What: "together"}
	for _, k := range kinds {
		if len(k.pids) == 0 {
			continue
		}
		h := holding{What: k.name, Processes: len(k.pids)}
		for _, pid := range k.pids {
			m, err := memoryOf(pid)
			if err != nil {
				return nil, err
			}
			h.memory = h.plus(m)
		}
		all = append(all, h)
		sum.Processes += h.Processes
		sum.memory = sum.plus(h.memory)
	}
	return append(all, sum), nil
}

func sameProcesses(a, b []holding) bool {
	return slices.EqualFunc(a, b, func(x, y holding) bool { return x.What == y.What && x.Processes == y.Processes })
}
