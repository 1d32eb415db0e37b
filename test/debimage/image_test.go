package debimage_test

import (
	"errors"
	"testing"

	"github.com/margolite/margolite/test/debimage"
)

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
