// Package metrics writes what can be counted in the formats that others read: the
// text format of Prometheus, version 0.0.4, which is asked for, and OTLP over HTTP
// with JSON, which is sent (Exporter).
//
// It knows numbers and names, and nothing of what they mean. It keeps nothing but
// the outcome of its own exports.
package metrics
