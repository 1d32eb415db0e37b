package debimage_test

import (
	"errors"
	"testing"

	"github.com/margolite/margolite/test/debimage"
)

func TestVersionsOfAnImageDiffer(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	cache, err := debimage.Open()
	if err != nil {
		t.Fatal(err)
	}
	digests := map[string]bool{}
	for _, version := range []string{"1", "2", "1"} {
		image, err := cache.Build(debimage.Image{Name: "tools"}, version)
		if err != nil {
			t.Fatal(err)
		}
		digests[image.Digest.String()] = true
	}
	if len(digests) != 2 {
		t.Errorf("two versions have %d digests", len(digests))
	}
}

func TestPackagesHaveToBeFetchedFirst(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	cache, err := debimage.Open()
	if err != nil {
		t.Fatal(err)
	}
	_, err = cache.Build(debimage.Image{Name: "redis", Packages: []string{"redis-server"}}, "1")
	if !errors.Is(err, debimage.ErrNotFetched) {
		t.Errorf("got %v", err)
	}
}
