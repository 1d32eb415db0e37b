// Package identity is who the device is, and whom it talks to.
//
// It owns the device's X.509-SVID (certificate, intermediates and private key), read from files
// that an operator provisions and replaces in place, and the trust bundle of its trust domain,
// from a file or the Margo Identity Service. From them it makes the one tls.Config with which the
// device may speak to its Workload Fleet Manager.
//
// Before rc.3 a device has a certificate that it gives the WFM itself, and signs each request
// with its key (Device, Signer); servers then have ordinary certificates, as gateways in front of
// a WFM do in any revision (ServerTLS).
//
// # Invariants
//
//   - A connection is made only to the WFM that the device's own certificate names: the
//     SPIFFE ID spiffe://<trust domain>/margo/wfm/<wfm> derived from
//     spiffe://<trust domain>/margo/wfm/<wfm>/client/<client>, or one of those configured
//     in its place. Host names play no role (ID-06, ID-07, ID-27).
//   - Trust comes from the bundle alone, never from the system's anchors, and a bundle
//     without an anchor is refused (ID-19). A new bundle replaces the old one without
//     merging (ID-21). Without a bundle there is no connection (ID-28).
//   - Intermediates are those that the peer presents; nothing is fetched (ID-08).
//   - TLS 1.3 and HTTP/1.1 only, no session resumption (ID-10, ID-11, ID-13); TLS 1.2 if
//     an operator allows it.
//   - A private key that others can read is not used (ID-25).
//   - The server of trust material proves itself by anchors and name or by pins, at every
//     request and on every origin (ID-14 ... ID-17). The trust bundle and the device's own
//     certificate have no part in that.
//
// # Failure model
//
// Load fails if files are missing or do not belong together; an Identity that is already loaded
// stays in use (ID-22). An expired certificate is not an error here: the WFM will refuse it, and
// the device is offline and no more than that; Expiry tells when. A bundle that cannot be
// refreshed stays in force indefinitely, also across restarts: BundleSource keeps its exact bytes
// (ID-24). Every error is an *Error whose Reason says what to do about it, except for answers of
// the identity service and failures to reach it. While the device's clock is known to be wrong,
// errors about validity say so, and a WFM whose certificate becomes valid later than the known
// time is accepted: it tells the time.
//
// # Dependencies
//
// SPIFFE IDs are parsed by go-spiffe's spiffeid. The rest of go-spiffe stays out: x509svid tells
// its refusals apart only by their text, where each needs another action, and spiffebundle brings
// go-jose along (200 KB) to read one member of a JWK Set.
package identity
