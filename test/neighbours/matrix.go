package neighbours

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Line is one row of the matrix as it was measured.
type Line struct {
	Number   int // of the hog
	Hog      string
	Backend  string
	Memory   int64   // bytes that the agent had at most
	Load     float64 // processors that it used
	Measured map[Duty]Cell
}

// Cell is one cell of it.
type Cell struct {
	Took  time.Duration
	Error string // why the duty was not done; empty: it was
}

// Save keeps a line for Load, which may be another process.
func (l Line) Save(dir string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d-%s.json", l.Number, l.Backend)), text, 0o644)
}

// Load gives all lines that were saved in dir.
func Load(dir string) ([]Line, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []Line
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var l Line
		if err := json.Unmarshal(text, &l); err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", file, err)
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b Line) int {
		return cmp.Or(cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Number, b.Number))
	})
	return all, nil
}

// Markdown is the matrix as a table, with seconds in its cells. A bound that is a
// row's own stands beside what was measured.
func Markdown(lines []Line) string {
	var b strings.Builder
	b.WriteString("| hog | containerd | agent, MiB | processors |")
	for _, c := range Columns {
		fmt.Fprintf(&b, " %s |", c.Duty)
	}
	fmt.Fprintf(&b, "\n|---|---|---|---|%s\n| *bound* | | %d | %.2f |", strings.Repeat("---|", len(Columns)), agentMemory>>20, agentLoad)
	for _, c := range Columns {
		fmt.Fprintf(&b, " %.0f s |", c.Bound.Seconds())
	}
	hogs := Hogs()
	for _, l := range lines {
		load := fmt.Sprintf("%.2f", l.Load)
		if asked := hogs[l.Number].Load; asked > 0 {
			load += fmt.Sprintf(" of %.2f", agentLoad+asked)
		}
		fmt.Fprintf(&b, "\n| %s | %s | %.0f | %s |", l.Hog, l.Backend, float64(l.Memory)/(1<<20), load)
		for _, c := range Columns {
			cell, ok := l.Measured[c.Duty]
			text := fmt.Sprintf("%.1f", cell.Took.Seconds())
			if own, ok := hogs[l.Number].Bounds[c.Duty]; ok {
				text += fmt.Sprintf(" of %.0f", own.Seconds())
			}
			switch {
			case !ok:
				text = "-"
			case cell.Error != "":
				text = "**fails**, " + text
			case cell.Took > hogs[l.Number].bound(c.Duty):
				text += " (busy machine)"
			}
			fmt.Fprintf(&b, " %s |", text)
		}
	}
	return b.String() + "\n"
}
