package registry

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/expect"
)

// A registry that breaks off is asked ever more rarely, also across clients and calls, until enough has come.
func TestDownloadsThatBreakOffGoOnEverMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		begun := time.Now()
		some := 1 // bytes that come at a time
		var asked []int
		cut := func(r *http.Request) *http.Response {
			asked = append(asked, int(time.Since(begun).Seconds()))
			var from int
			_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
			answer := answerOf(http.StatusOK, http.Header{}, strings.Repeat("a", min(some, size-from)))
			answer.ContentLength = -1
			if from > 0 {
				answer.StatusCode = http.StatusPartialContent
				answer.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, size-1, size))
			}
			return answer
		}
		desc := v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: digest.FromString("layer"), Size: size}
		pace, come := &Pace{}, int64(0)
		read := func() error {
			c := New(Options{Host: "registry.example", Client: &http.Client{Transport: answering(cut)}, Pace: pace})
			body, err := c.Open(t.Context(), app(t), desc, come)
			if err != nil {
				return err
			}
			n, err := io.Copy(io.Discard, body)
			come += n
			return errors.Join(err, body.Close())
		}
		for range 2 {
			expect.Error(t, read(), io.ErrUnexpectedEOF, "reading")
		}
		expect.Equal(t, asked, []int{0, 1, 3, 7, 15, 31, 63, 123}, "asked after so many seconds")
		some = 2 * Enough
		if err := read(); err != nil || come != size || time.Since(begun) > 190*time.Second {
			t.Errorf("%d bytes, %v after %s", come, err, time.Since(begun))
		}
		expect.Equal(t, len(pace.known), 0, "downloads that are remembered")
	})
}
