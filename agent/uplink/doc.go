// Package uplink is the way from the device to its Workload Fleet Manager.
//
// There are four of them: mutual TLS with an X.509-SVID (rc.3), requests that
// the device signs (before rc.3), a gateway that wants a password or a token,
// and a Git repository for the desired state, with any of the former for the
// reports. The package owns which one it is, the connections and the
// credentials over time: files that are replaced in place, a trust bundle that
// is fetched, a client id that is given once, a present that the device's own
// clock does not know. How each of these works is with agent/identity,
// agent/wfm and agent/git.
//
// # Invariants
//
//   - A way is made when it is needed and not before: a device whose certificate
//     is missing, broken or expired is offline, and nothing more than that.
//   - There is no way from one revision of the standard to another, or from one
//     kind of authentication to a weaker one, but the configuration.
//   - Files that were replaced are taken over with the next request, and
//     connections that rest on what they held before are closed (ID-02, ID-13).
//   - A client id is on the medium before it is used (AUTH-05).
//
// # Failure model
//
// What is wrong with the device's own files is an *identity.Error that says what
// to mend; it is looked for again with each request. Everything else is what
// agent/wfm and agent/git return.
package uplink
