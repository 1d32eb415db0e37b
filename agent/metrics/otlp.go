package metrics

import (
	"encoding/json"
	"math"
	"strconv"
	"time"
)

const scope = "github.com/margolite/margolite"

type object = map[string]any

// OTLP encodes families as an ExportMetricsServiceRequest in JSON. resource describes the device:
// name, value, name, value ... Counters count from start.
func OTLP(families Families, resource []string, start, now time.Time) []byte {
	metrics := make([]object, len(families))
	for i, f := range families {
		points := make([]object, len(f.Samples))
		for j, s := range f.Samples {
			points[j] = object{"attributes": attributes(s.Labels), "timeUnixNano": nanoseconds(now), "asDouble": s.Value}
			if math.IsInf(s.Value, 0) || math.IsNaN(s.Value) {
				points[j]["asDouble"] = "NaN"
			}
			if f.Kind == Counter {
				points[j]["startTimeUnixNano"] = nanoseconds(start)
			}
		}
		metrics[i] = object{"name": f.Name, "description": f.Help}
		if f.Kind == Counter {
			const cumulative = 2
			metrics[i]["sum"] = object{"aggregationTemporality": cumulative, "isMonotonic": true, "dataPoints": points}
		} else {
			metrics[i]["gauge"] = object{"dataPoints": points}
		}
	}
	body, _ := json.Marshal(object{"resourceMetrics": []object{{ // text and finite numbers always encode
		"resource":     object{"attributes": attributes(resource)},
		"scopeMetrics": []object{{"scope": object{"name": scope}, "metrics": metrics}},
	}}})
	return body
}

// nanoseconds since 1970, not negative; JSON encodes 64-bit numbers as text.
func nanoseconds(t time.Time) string { return strconv.FormatInt(max(t.UnixNano(), 0), 10) }

func attributes(labels []string) []object {
	all := make([]object, 0, len(labels)/2)
	for i := 0; i+1 < len(labels); i += 2 {
		all = append(all, object{"key": labels[i], "value": object{"stringValue": labels[i+1]}})
	}
	return all
}
