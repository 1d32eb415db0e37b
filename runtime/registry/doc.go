// Package registry reads from registries that speak the OCI distribution specification [DISTRIBUTION], with the tokens
// of Docker's registries [TOKENS] and OAuth 2 [OAUTH].
//
// It owns the requests: which media types are asked for, what is tried again, who is shown which credentials, and how a
// download goes on that broke off. How a host is reached, what may be spoken to without TLS and how long silence lasts
// is decided by the caller's http.Client. Nothing is kept but what a Client knows of the hosts it speaks to, in memory;
// it is made anew where credentials may have changed.
//
// # Trust
//
// Credentials are sent to the host they are for, and to the token service that this host names. What they buy goes to
// the host that asked for it alone: a redirect to another one, be it another port, carries no authorization, unless that
// host wants its own. Answers are bounded in size. A part is not verified against its digest, which is left to whoever
// keeps it, but is never longer than its descriptor says.
//
// [DISTRIBUTION]: https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md
// [TOKENS]: https://distribution.github.io/distribution/spec/auth/token/
// [OAUTH]: https://distribution.github.io/distribution/spec/auth/oauth/
package registry
