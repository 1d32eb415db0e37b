package metrics_test

import (
	"compress/gzip"
	"context"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/margolite/margolite/agent/metrics"
	"github.com/margolite/margolite/test/expect"
)

// received is what a collector makes of a request: the JSON form is that of the
// messages, of which MetricsData has the members of a request.
func received(t testing.TB, body []byte) *metricspb.ResourceMetrics {
	t.Helper()
	var data metricspb.MetricsData
	if err := protojson.Unmarshal(body, &data); err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	expect.Require(t, len(data.ResourceMetrics) == 1, "there are %d resources in\n%s", len(data.ResourceMetrics), body)
	return data.ResourceMetrics[0]
}

func some() metrics.Families {
	var f metrics.Families
	f.Add(metrics.Gauge, "up", "Whether it \"runs\".", 1)
	f.AddAll(metrics.Counter, "polls_total", "Polls.",
		metrics.Sample{Labels: []string{"result", "success"}, Value: 1.5},
		metrics.Sample{Labels: []string{"result", "failure"}, Value: math.NaN()})
	return f
}

func TestOTLP(t *testing.T) {
	start, now := time.Unix(1700000000, 0), time.Unix(1700000060, 5)
	r := received(t, metrics.OTLP(some(), []string{"service.name", "margolite", "host.id", "edge\n1"}, start, now))
	if a := r.Resource.Attributes; len(a) != 2 || a[1].Key != "host.id" || a[1].Value.GetStringValue() != "edge\n1" {
		t.Errorf("resource is %v", r.Resource)
	}
	all := r.ScopeMetrics[0].Metrics
	if len(all) != 2 || all[0].Name != "up" || all[0].GetGauge() == nil || all[0].GetGauge().DataPoints[0].GetAsDouble() != 1 {
		t.Fatalf("metrics are %v", all)
	}
	sum := all[1].GetSum()
	if sum == nil || !sum.IsMonotonic || sum.AggregationTemporality != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE || len(sum.DataPoints) != 2 {
		t.Fatalf("polls_total is %v", all[1])
	}
	p := sum.DataPoints[0]
	if p.StartTimeUnixNano != uint64(start.UnixNano()) || p.TimeUnixNano != uint64(now.UnixNano()) || p.GetAsDouble() != 1.5 || p.Attributes[0].Value.GetStringValue() != "success" {
		t.Errorf("point is %v", p)
	}
}

// Whatever a label holds, a collector takes what is sent.
func FuzzOTLP(f *testing.F) {
	f.Add("help", "value", 1.0)
	f.Add("\x00\"", "\\\xff\u2028", math.Inf(-1))
	f.Fuzz(func(t *testing.T, help, label string, value float64) {
		var all metrics.Families
		all.AddAll(metrics.Counter, "a", help, metrics.Sample{Labels: []string{"x", label}, Value: value})
		received(t, metrics.OTLP(all, []string{"k", label}, time.Time{}, time.Time{}))
	})
}

// A collector that does not answer is asked again, and one that does gets what
// there is now. Failures are counted.
func TestOBS10OBS13Export(t *testing.T) {
	broken := true
	heard := make(chan *metricspb.ResourceMetrics, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken {
			broken = false
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
			return
		}
		if r.Method != http.MethodPost || r.URL.Path != "/base/v1/metrics" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("request is %s %s of %s", r.Method, r.URL, r.Header.Get("Content-Type"))
		}
		packed, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		body, err := io.ReadAll(packed)
		expect.OK(t, err)
		select {
		case heard <- received(t, body):
		default:
		}
	}))
	defer collector.Close()
	ctx, cancel := context.WithCancel(t.Context())
	e := &metrics.Exporter{
		URL: collector.URL + "/base/", Interval: time.Millisecond, Start: time.Now(), Now: time.Now,
		Families: func(context.Context) metrics.Families { return some() },
	}
	ended := make(chan error)
	go func() { ended <- e.Run(ctx) }()
	expect.Equal(t, (<-heard).ScopeMetrics[0].Metrics[0].Name, "up", "the collector heard")
	cancel()
	expect.OK(t, <-ended)
	if _, failures, _ := e.Done(); failures != 1 {
		t.Errorf("%d exports failed, want the one that was sent elsewhere", failures)
	}
}
