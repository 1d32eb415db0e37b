//go:build armboot

package arm

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// figures are what a machine took: a table for people.
type figures struct {
	board board
	file  string
	since time.Time
	times []string
	sizes []string
}

// begin is when the next thing begins; else it is the end of the last one.
func (f *figures) begin() { f.since = time.Now() }

func (f *figures) took(what string) {
	now := time.Now()
	f.times = append(f.times, fmt.Sprintf("| %s | %.0f |", what, now.Sub(f.since).Seconds()))
	f.since = now
	_ = f.write() // for whoever looks in between
}

// memory of the machine at some time. It takes no time in the table.
func (f *figures) memory(m *machine, when string) {
	m.t.Helper()
	var now struct {
		Total, Available, Private, Resident int64
		Processes                           map[string]int64
	}
	m.decode(&now, tools+"/guest", "memory")
	mb := func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) }
	f.sizes = append(f.sizes, "| "+strings.Join([]string{
		when, mb(now.Total), mb(now.Available), mb(now.Processes["margolite"]), mb(now.Private), mb(now.Resident),
		mb(now.Processes["containerd-shim"]), mb(now.Processes["demoapp"]),
	}, " | ")+" |")
	f.begin()
}

func (f *figures) write() error {
	lines := append([]string{
		"# Debian " + release + " for " + f.board.arch + ", " + memory + " MB, " + strings.Join(f.board.machine, " ") + ", emulated", "",
		"| what | seconds |", "| --- | ---: |",
	}, f.times...)
	lines = append(lines, "", "Memory in MB of a million bytes; PSS is the proportional share.", "",
		"| when | total | available | agent PSS | agent alone | agent RSS | shims PSS | application PSS |",
		"| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	lines = append(lines, f.sizes...)
	return os.WriteFile(f.file, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}
