package external

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

func TestStatus(t *testing.T) {
	for name, test := range map[string]struct {
		status, message string
		want            error
		text            string
	}{
		"success":                    {"0", "", io.EOF, "EOF"},
		"not found, said twice":      {"5", `image "a": not found`, errdefs.ErrNotFound, `image "a": not found`},
		"a percent-encoded message":  {"6", "%E2%82%AC is there", errdefs.ErrAlreadyExists, "\u20ac is there: already exists"},
		"a message encoded badly":    {"3", "100% wrong", errdefs.ErrInvalidArgument, "100% wrong: invalid argument"},
		"a message that is not text": {"2", "%ff", errdefs.ErrUnknown, "\uFFFD: unknown"},
		"no message":                 {"9", "", errdefs.ErrFailedPrecondition, "failed precondition"},
		"the deadline":               {"4", "context deadline exceeded", context.DeadlineExceeded, "context deadline exceeded"},
		"given up":                   {"1", "", context.Canceled, "context canceled"},
		"an unknown code":            {"99", "odd", errdefs.ErrUnknown, "odd: unknown"},
		"no status":                  {"", "", errdefs.ErrUnavailable, "unavailable: the answer broke off"},
		"a status that is no number": {"five", "", errFrame, `containerd does not keep to the protocol: status "five"`},
		"a negative status":          {"-1", "", errFrame, `containerd does not keep to the protocol: status "-1"`},
	} {
		t.Run(name, func(t *testing.T) {
			if err := statusError(test.status, test.message); !errors.Is(err, test.want) || err.Error() != test.text {
				t.Errorf("error is %q, want %q", err, test.text)
			}
		})
	}
}

func FuzzStatus(f *testing.F) {
	f.Add("0", "")
	f.Add("5", "image: not found")
	f.Add("14", "%E2%82%AC%")
	f.Add("256", "%00%ff")
	f.Fuzz(func(t *testing.T, status, message string) {
		err := statusError(status, message)
		if err == nil {
			t.Fatal("no error")
		}
		if strings.TrimLeft(status, "0") != "" && err == io.EOF {
			t.Errorf("status %q is taken for success", status)
		}
		if !utf8.ValidString(err.Error()) {
			t.Errorf("status %q, %q is %q", status, message, err)
		}
	})
}
