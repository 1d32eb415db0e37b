// Package registry reads from registries with containerd's client (core/remotes/docker), which speaks the OCI
// distribution specification and gets the tokens that registries want. A Client is for one registry or mirror; how it is
// reached, what may be spoken to without TLS and how long silence lasts is decided by the caller's http.Client.
//
// What this package adds are guarantees that containerd's client doesn't give:
//
//   - Credentials and tokens go to the host that asked for them alone, also when it redirects to another port or to a
//     subdomain (Client.redirect), and from a token service nowhere else (Redirect). A refused password or a new
//     token isn't sent again (authorizer).
//   - Every answer is bounded in size, and so are the challenges and the token answers in it (transport, tokens). An
//     HTML page is not taken for the answer of a registry.
//   - A download goes on exactly where it broke off, after pauses that grow until enough has come, also across calls
//     (Pace). A registry that ignores Range, refuses it or answers with another part is asked for the whole, of which
//     what has come is discarded (transport).
//   - A busy registry is left alone for as long as it asks, and one that doesn't answer is asked twice (transport).
//   - What containerd's client logs (URLs, headers) is dropped.
//
// What comes is not verified against its digest, which is left to whoever stores it, but is never longer than its
// descriptor says.
package registry
