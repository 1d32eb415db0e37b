package metrics_test

import (
	"math"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/margolite/margolite/agent/metrics"
	"github.com/margolite/margolite/test/expect"
)

// parsed reads text as Prometheus does.
func parsed(text string) (map[string]*dto.MetricFamily, error) {
	p := expfmt.NewTextParser(model.LegacyValidation)
	return p.TextToMetricFamilies(strings.NewReader(text))
}

func TestText(t *testing.T) {
	var f metrics.Families
	f.Add(metrics.Gauge, "up", "Whether \\ it runs.\nOr not.", 1)
	f.AddAll(metrics.Counter, "polls_total", "Polls.",
		metrics.Sample{Labels: []string{"result", "success", "to", `a "b" \ c` + "\n"}, Value: 1.5},
		metrics.Sample{Labels: []string{"result", "failure", "to", "\xff"}, Value: 1 << 40})
	f.AddAll(metrics.Gauge, "nothing", "None.")
	f.Add(metrics.Gauge, "unknown", "Not a number.", math.NaN())
	want := `# HELP up Whether \\ it runs.\nOr not.
# TYPE up gauge
up 1
# HELP polls_total Polls.
# TYPE polls_total counter
polls_total{result="success",to="a \"b\" \\ c\n"} 1.5
polls_total{result="failure",to="` + "\ufffd" + `"} 1.099511627776e+12
# HELP unknown Not a number.
# TYPE unknown gauge
unknown NaN
`
	got := string(metrics.AppendText(nil, f))
	expect.True(t, got == want, "text is\n%s\nwant\n%s", got, want)
	expect.Error(t, expect.ErrorOf(parsed(got)), nil, "the text is refused")
}

// Whatever a label holds, the text stays one that is taken.
func FuzzText(f *testing.F) {
	f.Add("help", "value", 1.0)
	f.Add("a\nb", `"} 1`+"\n# TYPE", math.Inf(1))
	f.Add("\\", "\xff\x00\r", math.Copysign(0, -1))
	f.Fuzz(func(t *testing.T, help, label string, value float64) {
		var all metrics.Families
		all.AddAll(metrics.Gauge, "a_b", help, metrics.Sample{Labels: []string{"x", label, "y", help}, Value: value})
		families, err := parsed(string(metrics.AppendText(nil, all)))
		expect.Check(t, err)
		if got := families["a_b"].Metric[0].Label[0].GetValue(); got != strings.ToValidUTF8(label, "\ufffd") {
			t.Errorf("label is %q, want %q", got, label)
		}
	})
}
