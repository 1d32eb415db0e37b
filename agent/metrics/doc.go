// Package metrics writes metrics in the text format of Prometheus, version 0.0.4, which is pulled,
// and as OTLP over HTTP with JSON, which Exporter pushes. It knows names and numbers but not their
// meaning, and keeps no state but the outcome of its exports.
package metrics
