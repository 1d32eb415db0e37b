// Package wfm is the client of the Workload Fleet Manager: revision
// 1.0.0-rc.3 of the management interface over HTTP/1.1.
//
// It owns the requests, the connections that they travel on, and the bounds of
// what comes back. What the documents mean is agent/margo's, who the peer is
// agent/identity's, when to ask and what to do with the answer the caller's.
//
// # Invariants
//
//   - Nothing leaves for another origin than the configured one: URLs in a
//     manifest that lead elsewhere are not used, redirects are errors, and no
//     proxy is taken from the environment.
//   - Documents are returned only when every one that was asked for has the
//     digest that the manifest names, over the exact bytes after
//     Content-Encoding was undone (DS-09, DS-10); never some of them. How they
//     came, as a bundle or one by one, cannot be told from the result.
//   - Every answer is bounded in size before and after decompression, and in
//     time both between two bytes and as a whole.
//   - A connection is not used for longer than an hour, nor beyond CloseIdle
//     (ID-12, ID-13).
//
// # Failure model
//
// An answer of the WFM that is no success is an *Error. Everything else that
// keeps an answer from arriving, TLS included, is an error that Retry calls
// retryable: the device is offline, and that is all. Content that is not what
// it should be is reported by the sentinel errors below and not worth a retry
// before the next poll. The client itself repeats nothing, apart from trying
// the other way to the same document.
package wfm
