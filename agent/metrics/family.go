//go:build !slim

package metrics

import (
	"math"
	"strconv"
	"strings"
)

// Kind is what may become of a number.
type Kind string

// The kinds of families.
const (
	Counter Kind = "counter" // it only grows, from 0 when the agent starts
	Gauge   Kind = "gauge"
)

// Family is a name with its samples, which differ in their labels. Its name is
// valid for Prometheus: letters, digits and underscores, with the unit at the end.
type Family struct {
	Name    string
	Help    string // one sentence
	Kind    Kind
	Samples []Sample
}

// Sample is one number.
type Sample struct {
	Labels []string // name, value, name, value ...
	Value  float64
}

// Families are collected in the order in which they are to be written.
type Families []Family

// Add adds a family of one number.
func (f *Families) Add(kind Kind, name, help string, value float64) {
	f.AddAll(kind, name, help, Sample{Value: value})
}

// AddAll adds a family, unless it has no samples.
func (f *Families) AddAll(kind Kind, name, help string, samples ...Sample) {
	if len(samples) > 0 {
		*f = append(*f, Family{name, help, kind, samples})
	}
}

// AppendText appends families in the text format of Prometheus.
func AppendText(b []byte, families Families) []byte {
	for _, f := range families {
		b = append(append(append(b, "# HELP "...), f.Name...), ' ')
		b = append(append(b, escaped(f.Help, false)...), '\n')
		b = append(append(append(b, "# TYPE "...), f.Name...), ' ')
		b = append(append(b, f.Kind...), '\n')
		for _, s := range f.Samples {
			b = append(b, f.Name...)
			for i := 0; i+1 < len(s.Labels); i += 2 {
				separator := byte(',')
				if i == 0 {
					separator = '{'
				}
				b = append(append(append(b, separator), s.Labels[i]...), `="`...)
				b = append(append(b, escaped(s.Labels[i+1], true)...), '"')
			}
			if len(s.Labels) > 1 {
				b = append(b, '}')
			}
			b = append(appendNumber(append(b, ' '), s.Value), '\n')
		}
	}
	return b
}

// escaped is a text on one line; of a label it stands between quotes. What is no
// UTF-8 is replaced: a scrape is refused as a whole otherwise.
func escaped(text string, label bool) string {
	text = strings.ToValidUTF8(text, "\ufffd")
	text = strings.ReplaceAll(text, `\`, `\\`)
	text = strings.ReplaceAll(text, "\n", `\n`)
	if label {
		text = strings.ReplaceAll(text, `"`, `\"`)
	}
	return text
}

func appendNumber(b []byte, n float64) []byte {
	switch {
	case math.IsInf(n, 0), math.IsNaN(n):
		return append(b, "NaN"...)
	case n == math.Trunc(n) && math.Abs(n) < 1<<53:
		return strconv.AppendInt(b, int64(n), 10)
	}
	return strconv.AppendFloat(b, n, 'g', -1, 64)
}
