// Package uplink is the way from the device to its Workload Fleet Manager.
//
// There are four: mutual TLS with an X.509-SVID (rc.3), requests signed by the device (before
// rc.3), a gateway with a password or token, and a Git repository for the desired state, with any
// of the others for reports. The package owns the choice, the connections and the credentials over
// time: files replaced in place, a fetched trust bundle, a client id assigned once, and the present
// on a device whose clock may be wrong. How each works is in agent/identity, agent/wfm and
// agent/git.
//
// # Invariants
//
//   - A way is set up on demand: a device whose certificate is missing, broken or expired is
//     offline, and nothing worse.
//   - Only the configuration changes the revision of the standard, or weakens the
//     authentication.
//   - Replaced files take effect with the next request, and connections based on their former
//     content are closed (ID-02, ID-13).
//   - A client id is durable before it is used (AUTH-05).
//
// # Failure model
//
// A problem of the device's own files is an *identity.Error that says how to fix it; each request
// checks again. Other errors are those of agent/wfm and agent/git.
package uplink
