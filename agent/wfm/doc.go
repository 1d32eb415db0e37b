// Package wfm is the client of the Workload Fleet Manager: revision
// 1.0.0-rc.3 of the management interface over HTTP/1.1.
//
// It owns the requests, the connections that they travel on, and the bounds of
// what comes back. What the documents mean is agent/margo's, who the peer is
// agent/identity's, when to ask and what to do with the answer the caller's.
//
// # Invariants
//
//   - Credentials leave for the configured origin only. What a manifest refers
//     to on another one is asked for without any, and not from addresses of the
//     device itself (elsewhere.go); redirects are errors, and no proxy is taken
//     from the environment.
//   - A document is given to the caller only when it has the digest that the
//     manifest names, over the exact bytes after Content-Encoding was undone
//     (DS-09, DS-10), and out of a bundle only when that is right as a whole.
//     How it came cannot be told from the result.
//   - A bundle goes to a file, and its transfer on where it broke off, also
//     after a restart: memory does not grow with it.
//   - Every answer is bounded in size before and after decompression, and in
//     time both between two bytes and as a whole; a bundle also in how much it
//     may expand, and in number, names and depth of its entries.
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
