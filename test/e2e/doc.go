// Package e2e tests margolite from end to end: the real program with real
// containerd, runc and containers, against the development WFM over mutual TLS
// and a real registry, on the containerd that it carries and on Debian's.
package e2e
