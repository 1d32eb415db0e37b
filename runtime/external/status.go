package external

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// kinds are the statuses of gRPC, and what containerd means by them.
var kinds = [...]error{
	1:  context.Canceled,
	2:  errdefs.ErrUnknown,
	3:  errdefs.ErrInvalidArgument,
	4:  context.DeadlineExceeded,
	5:  errdefs.ErrNotFound,
	6:  errdefs.ErrAlreadyExists,
	7:  errdefs.ErrPermissionDenied,
	8:  errdefs.ErrResourceExhausted,
	9:  errdefs.ErrFailedPrecondition,
	10: errdefs.ErrAborted,
	11: errdefs.ErrOutOfRange,
	12: errdefs.ErrNotImplemented,
	13: errdefs.ErrInternal,
	14: errdefs.ErrUnavailable,
	15: errdefs.ErrDataLoss,
	16: errdefs.ErrUnauthenticated,
}

// checkAnswer says whether an answer can have messages of gRPC.
func checkAnswer(answer *http.Response) error {
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s", errdefs.ErrUnavailable, answer.Status)
	}
	if kind := answer.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/grpc") {
		return fmt.Errorf("%w: it answers with %.100q", errFrame, kind)
	}
	return nil
}

// statusOf is how a call has ended that was read to its end: io.EOF if it has succeeded, else the error of containerd.
// A call that failed at once has its status among the headers.
func statusOf(answer *http.Response) error {
	from := answer.Trailer
	if from.Get("Grpc-Status") == "" {
		from = answer.Header
	}
	return statusError(from.Get("Grpc-Status"), from.Get("Grpc-Message"))
}

func statusError(status, message string) error {
	code, err := strconv.ParseUint(status, 10, 8)
	switch {
	case status == "":
		return fmt.Errorf("%w: the answer broke off", errdefs.ErrUnavailable)
	case err != nil:
		return fmt.Errorf("%w: status %.20q", errFrame, status)
	case code == 0:
		return io.EOF
	}
	var kind error = errdefs.ErrUnknown
	if code < uint64(len(kinds)) {
		kind = kinds[code]
	}
	// The message usually ends with the kind, which is said once.
	text := strings.TrimSuffix(plain(message), kind.Error())
	if text = strings.TrimSuffix(text, ": "); text == "" {
		return kind
	}
	return fmt.Errorf("%s: %w", text, kind)
}

// plain undoes the percent-encoding of messages. What is not encoded well stays as it is.
func plain(message string) string {
	if decoded, err := url.PathUnescape(message); err == nil {
		message = decoded
	}
	return strings.ToValidUTF8(message, "\uFFFD")
}
