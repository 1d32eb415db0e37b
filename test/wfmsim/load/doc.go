// Package load plays a fleet: thousands of devices that poll one WFM over real
// TLS, each with a certificate and a connection of its own, and thousands that
// come back after an outage, in simulated time.
//
// A fleet takes one socket a device and little else, so that what is measured is
// the WFM. It is bounded in devices, in requests at a time and by its context;
// it speaks to whom it is told to, which should be this machine.
package load
