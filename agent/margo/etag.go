package margo

import "strings"

// MaxETag bounds what is kept and sent back of an ETag, in bytes.
const MaxETag = 1 << 10

// UsableETag reports whether an ETag can be sent back unchanged. One with control
// characters would keep the request from being sent, and "*", even within white space, would
// match everything.
func UsableETag(etag string) bool {
	bare := strings.TrimSpace(etag)
	return bare != "" && bare != "*" && len(etag) <= MaxETag &&
		!strings.ContainsFunc(etag, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f })
}
