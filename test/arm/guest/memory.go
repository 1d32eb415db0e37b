package main

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory in bytes: what the machine has and what is available there, and the
// proportional share of margolite's processes, by name.
type Memory struct {
	Total     int64            `json:"total"`
	Available int64            `json:"available"`
	Processes map[string]int64 `json:"processes"`
	// Private is what the agent alone has, Resident all that it has in memory.
	Private  int64 `json:"private"`
	Resident int64 `json:"resident"`
}

func measure() (Memory, error) {
	m := Memory{Processes: map[string]int64{}}
	machine, err := fields("/proc/meminfo")
	if err != nil {
		return m, err
	}
	m.Total, m.Available = machine["MemTotal"], machine["MemAvailable"]
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return m, err
	}
	for _, dir := range all {
		name, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue // it ended
		}
		share, err := fields(filepath.Join(dir, "smaps_rollup"))
		if err != nil {
			continue // it ended, or is a thread of the kernel
		}
		switch comm := strings.TrimSpace(string(name)); comm {
		case "margolite":
			m.Private = share["Private_Clean"] + share["Private_Dirty"]
			m.Resident = share["Rss"]
			m.Processes[comm] += share["Pss"]
		case "containerd-shim", "demoapp":
			m.Processes[comm] += share["Pss"]
		}
	}
	return m, nil
}

// fields are the lines "Name: 123 kB" of a file, in bytes.
func fields(file string) (map[string]int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err == nil {
			all[strings.TrimSuffix(f[0], ":")] = n << 10
		}
	}
	if len(all) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	return all, nil
}
