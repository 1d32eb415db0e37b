// Package health probes services by running a command in their containers at intervals.
//
// It follows Docker's rules: a container is starting until a probe succeeds, or as many fail
// in a row as its check allows; failures within the start period do not count until a first
// success. Results are kept in memory only, so a new Monitor probes at once.
package health
