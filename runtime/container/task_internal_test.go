package container

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/margolite/margolite/test/expect"
)

// A container that meets the shim of its group while that one ends gets another.
func TestAShimThatEndsIsReplaced(t *testing.T) {
	var (
		renamed = errors.New("failed to start shim: start failed: failed to write bootstrap.json: rename: no such file or directory")
		closed  = errors.New("failed to create shim task: ttrpc: closed")
		ending  = errors.New("failed to create shim task: shutdown")
		there   = fmt.Errorf("task web: %w", errdefs.ErrAlreadyExists)
		refused = errors.New("failed to create shim task: OCI runtime create failed: exec: no such file or directory")
	)
	endless := make([]error, 100)
	for i := range endless {
		endless[i] = renamed
	}
	for name, c := range map[string]struct {
		errs  []error
		asked int
		err   error
	}{
		"nothing is in its way":                  {nil, 1, nil},
		"a shim that ends":                       {[]error{renamed}, 2, nil},
		"several, and what containerd clears up": {[]error{closed, ending, there, there, renamed}, 6, nil},
		"a command that is not there":            {[]error{refused, nil}, 1, refused},
		"no shim at all":                         {endless, maxLostShims + 1, renamed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				err := (&tasks{}).untilClear(t.Context(), "web", func() error {
					if asked++; asked > len(c.errs) {
						return nil
					}
					return c.errs[asked-1]
				})
				if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
					t.Errorf("the error is %v, want %v", err, c.err)
				}
				expect.Equal(t, asked, c.asked, "starts")
			})
		})
	}
}

// Who is told to leave finishes a creation that has begun, and leaves one that hangs.
func TestACreationIsFinished(t *testing.T) {
	for takes, want := range map[time.Duration]error{time.Second: nil, finishTimeout: nil, time.Hour: context.Canceled} {
		t.Run(takes.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, leave := context.WithCancel(t.Context())
				time.AfterFunc(time.Millisecond, leave)
				begun := time.Now()
				slow := func(ctx context.Context) error {
					if !pause(ctx, takes) {
						return ctx.Err()
					}
					return nil
				}
				r := &runc{dir: "none"}
				expect.Error(t, expect.ErrorOf(r.unblocked(ctx, "create", "web", cancelledIdle, slow)), want, "it ends with")
				if took := time.Since(begun); took > finishTimeout+time.Second {
					t.Errorf("it ends after %s", took)
				}
			})
		})
	}
}
