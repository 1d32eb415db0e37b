package metrics

import (
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// scope is who measures, as OTLP names it.
const scope = "github.com/margolite/margolite"

// AppendOTLP appends families as an ExportMetricsServiceRequest of OTLP in its JSON
// form. resource describes the device: name, value, name, value ... Counters count
// from start on.
func AppendOTLP(b []byte, families Families, resource []string, start, now time.Time) []byte {
	b = append(b, `{"resourceMetrics":[{"resource":{"attributes":`...)
	b = appendAttributes(b, resource)
	b = append(b, `},"scopeMetrics":[{"scope":{"name":`...)
	b = appendString(b, scope)
	b = append(b, `},"metrics":[`...)
	for i, f := range families {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"name":`...), f.Name)
		b = appendString(append(b, `,"description":`...), f.Help)
		if f.Kind == Counter {
			b = append(b, `,"sum":{"aggregationTemporality":2,"isMonotonic":true,"dataPoints":[`...)
		} else {
			b = append(b, `,"gauge":{"dataPoints":[`...)
		}
		b = appendPoints(b, f, start, now)
		b = append(b, `]}}`...)
	}
	return append(b, `]}]}]}`...)
}

func appendPoints(b []byte, f Family, start, now time.Time) []byte {
	for i, s := range f.Samples {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendAttributes(append(b, `{"attributes":`...), s.Labels)
		if f.Kind == Counter {
			b = appendTime(append(b, `,"startTimeUnixNano":`...), start)
		}
		b = appendTime(append(b, `,"timeUnixNano":`...), now)
		b = append(b, `,"asDouble":`...)
		if math.IsInf(s.Value, 0) || math.IsNaN(s.Value) {
			b = append(b, `"NaN"`...)
		} else {
			b = strconv.AppendFloat(b, s.Value, 'g', -1, 64)
		}
		b = append(b, '}')
	}
	return b
}

// appendTime appends nanoseconds: 64 bits are text in JSON. Nothing is before 1970.
func appendTime(b []byte, t time.Time) []byte {
	return append(strconv.AppendInt(append(b, '"'), max(t.UnixNano(), 0), 10), '"')
}

func appendAttributes(b []byte, labels []string) []byte {
	b = append(b, '[')
	for i := 0; i+1 < len(labels); i += 2 {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"key":`...), labels[i])
		b = appendString(append(b, `,"value":{"stringValue":`...), labels[i+1])
		b = append(b, `}}`...)
	}
	return append(b, ']')
}

// appendString appends a string of JSON.
func appendString(b []byte, text string) []byte {
	b = append(b, '"')
	for _, r := range text { // what is no UTF-8 becomes utf8.RuneError
		switch {
		case r == '"', r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ':
			const hex = "0123456789abcdef"
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
