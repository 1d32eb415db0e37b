package main

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// pollBenchmark is what an unchanged poll takes, as BenchmarkUnchangedPoll of
// package agent measures it: the runtime knows what no one sees from outside.
type pollBenchmark struct {
	Polls       int           `json:"polls"`
	Took        time.Duration `json:"tookNs"`
	Allocations int64         `json:"allocations"`
	Bytes       int64         `json:"bytes"`
	Goroutines  float64       `json:"goroutinesMore"` // after all polls
}

// benchmarkPolls runs the benchmark of a test program.
func benchmarkPolls(ctx context.Context, program string) (*pollBenchmark, error) {
	out, err := exec.CommandContext(ctx, program, "-test.run", "^$", "-test.bench", "^BenchmarkUnchangedPoll$", "-test.benchtime", "500x").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("cannot run the benchmark: %w: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line) // name, polls, then pairs of value and unit
		if len(words) < 4 || !strings.HasPrefix(words[0], "BenchmarkUnchangedPoll") {
			continue
		}
		b := &pollBenchmark{}
		if b.Polls, err = strconv.Atoi(words[1]); err != nil {
			return nil, fmt.Errorf("cannot read %q: %w", line, err)
		}
		for i := 2; i+1 < len(words); i += 2 {
			value, err := strconv.ParseFloat(words[i], 64)
			if err != nil {
				return nil, fmt.Errorf("cannot read %q: %w", line, err)
			}
			switch words[i+1] {
			case "ns/op":
				b.Took = time.Duration(value)
			case "allocs/op":
				b.Allocations = int64(value)
			case "B/op":
				b.Bytes = int64(value)
			case "goroutines-more":
				b.Goroutines = value
			}
		}
		return b, nil
	}
	return nil, fmt.Errorf("the benchmark says nothing of itself: %s", out)
}
