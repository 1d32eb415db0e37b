package metrics

import (
	"bytes"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Kind is the kind of a metric.
type Kind string

// The kinds of families.
const (
	Counter Kind = "counter" // only grows, from 0 at the agent's start
	Gauge   Kind = "gauge"
)

// Family is a metric's name with its samples, which differ in their labels. The name is valid for
// Prometheus: letters, digits and underscores, with the unit at the end.
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

// Families are collected in output order.
type Families []Family

// Add adds a family with one sample.
func (f *Families) Add(kind Kind, name, help string, value float64) {
	f.AddAll(kind, name, help, Sample{Value: value})
}

// AddAll adds a family, unless it has no samples.
func (f *Families) AddAll(kind Kind, name, help string, samples ...Sample) {
	if len(samples) > 0 {
		*f = append(*f, Family{name, help, kind, samples})
	}
}

// AppendText appends families in the text format of Prometheus. Invalid
// UTF-8 is replaced, because Prometheus would reject the whole scrape.
func AppendText(b []byte, families Families) []byte {
	out := bytes.NewBuffer(b)
	for _, f := range families {
		in := &dto.MetricFamily{Name: &f.Name, Help: valid(f.Help), Type: dto.MetricType_GAUGE.Enum()}
		if f.Kind == Counter {
			in.Type = dto.MetricType_COUNTER.Enum()
		}
		for _, s := range f.Samples {
			m := &dto.Metric{}
			for i := 0; i+1 < len(s.Labels); i += 2 {
				m.Label = append(m.Label, &dto.LabelPair{Name: &s.Labels[i], Value: valid(s.Labels[i+1])})
			}
			if f.Kind == Counter {
				m.Counter = &dto.Counter{Value: &s.Value}
			} else {
				m.Gauge = &dto.Gauge{Value: &s.Value}
			}
			in.Metric = append(in.Metric, m)
		}
		_, _ = expfmt.MetricFamilyToText(out, in) // writes to a buffer do not fail
	}
	return out.Bytes()
}

func valid(text string) *string {
	text = strings.ToValidUTF8(text, "\ufffd")
	return &text
}
