package image_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/test/containerdtest"
)

// throttled is an answer that comes at so many bytes a second, together with all others of the same turn.
type throttled struct {
	http.ResponseWriter
	turn *sync.Mutex
	rate int64
}

func (w throttled) Write(p []byte) (int, error) {
	w.turn.Lock()
	defer w.turn.Unlock()
	time.Sleep(time.Duration(len(p)) * time.Second / time.Duration(w.rate))
	return w.ResponseWriter.Write(p)
}

// BenchmarkPullAll brings three images of four layers each, one of which they share, 62 MiB in all.
func BenchmarkPullAll(b *testing.B) {
	for _, rate := range []int64{20 << 20, 1 << 40} {
		for _, atOnce := range []int{1, 2, 3, 6} {
			b.Run(fmt.Sprintf("%d MiB per second, %d at once", rate>>20, atOnce), func(b *testing.B) {
				client := containerdtest.Embedded(b)
				ctx := containerdtest.Context(b)
				for b.Loop() {
					b.StopTimer()
					w := watch(b)
					base := containerdtest.Blob(b, "base", 8<<20)
					var wants []image.Want
					for n := range 3 {
						layers := [][]byte{base}
						for l := range 3 {
							layers = append(layers, containerdtest.Blob(b, fmt.Sprint("layer", l), 6<<20))
						}
						wants = append(wants, image.Want{Ref: fmt.Sprintf("%s/app%d:1", w.host, n)})
						containerdtest.Push(b, containerdtest.Image(b, nil, layers...), wants[n].Ref)
					}
					next, turn := w.next, new(sync.Mutex)
					w.next = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
						next.ServeHTTP(throttled{rw, turn, rate}, r)
					})
					images, err := image.New(image.Options{Client: client, Registries: w.plain(), AtOnce: atOnce})
					if err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
					if _, err := images.PullAll(ctx, wants, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
