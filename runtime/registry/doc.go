// Package registry reads from registries with containerd's client (core/remotes/docker), which
// speaks the OCI distribution specification and gets tokens. A Client is for one registry or
// mirror. The caller's http.Client decides how it is reached, where TLS is optional, and the
// timeouts.
//
// This package adds guarantees that containerd's client does not give:
//
//   - Credentials and tokens go only to the host that asked for them, also when it redirects to
//     another port or a subdomain (Client.redirect), and are not sent on by a token service
//     (Redirect). A refused password or new token is not sent again (authorizer).
//   - Every answer is bounded in size, including challenges and token answers (transport,
//     tokens). An HTML page is not taken for a registry's answer.
//   - A download continues exactly where it broke off, after pauses that grow until enough has
//     arrived, also across calls (Pace). If a registry ignores or refuses Range or sends another
//     part, the whole is requested, and what is already present discarded (transport).
//   - A busy registry is left alone as long as it asks, and one that does not answer is tried
//     twice (transport).
//   - Logs of containerd's client (URLs, headers) are dropped.
//
// Content is never longer than its descriptor says. Verifying its digest is left to the caller.
package registry
