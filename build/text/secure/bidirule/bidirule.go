// Package bidirule stands in for the one of the same name, which grpc-go links
// for the names of hosts. Those of ASCII are as they were; of others it refuses
// what it would have to know more of Unicode for. gRPC is spoken over sockets
// here, to no hosts; for HTTP, net/http has tables of its own.
package bidirule

import "golang.org/x/text/unicode/bidi"

// DirectionString is in which direction a text is written: only that of ASCII is
// known.
func DirectionString(text string) bidi.Direction {
	if !bidi.IsASCII(text) {
		return bidi.RightToLeft
	}
	return bidi.LeftToRight
}

// ValidString says whether a name that is, or is beside, one written from right
// to left is known to be in order.
func ValidString(text string) bool { return bidi.IsASCII(text) }
