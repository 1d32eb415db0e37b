// Package wfm is the client of the Workload Fleet Manager: the management interface over
// HTTP/1.1, in the dialects of revision 1.0.0-rc.3 and of those before it.
//
// It owns the requests, their connections, the differences between the dialects, and the bounds
// of answers, also of the identity service's ([Get]). Its callers speak rc.3: reports come in
// that form and leave in the WFM's. What the documents mean is agent/margo's, who the peer is
// agent/identity's, when to ask and what to do with the answer the caller's.
//
// # Invariants
//
//   - Requests go to the configured origin only, whatever a manifest refers to; redirects
//     are errors, and no proxy is taken from the environment.
//   - A document is given to the caller only when it has the digest that the manifest
//     names, over the exact bytes after Content-Encoding was undone (DS-09, DS-10), and
//     from a bundle only when that is right as a whole. The result does not show how it
//     came.
//   - A bundle goes to a file, and its transfer resumes there, also after a restart: memory
//     does not grow with it.
//   - Every answer is bounded in size before and after decompression, and in time both
//     between two bytes and as a whole; a bundle also in its expansion and number of
//     entries.
//   - A connection is not used for longer than an hour, nor beyond CloseIdle or a change of
//     what it was trusted for (ID-12, ID-13).
//   - Each attempt of a signed request has its own signature (AUTH-11). A dialect is never
//     left for an older one.
//
// # Failure model
//
// An unsuccessful answer is an *Error; if it says something about the client itself
// (ErrClientUnknown, ErrUnauthenticated, ErrNotApproved, ErrCertificateRefused) errors.Is finds
// that. Everything else that keeps an answer from arriving, TLS included, is an error that Retry
// calls retryable: the device is offline, and that is all. Unfit content is reported by the
// sentinel errors below and not worth a retry before the next poll. The client itself repeats
// nothing, apart from trying, once each, the other way to the same document and the other forms
// of a request that WFMs of a dialect are known to have.
package wfm
