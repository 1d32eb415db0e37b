package compose_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/compose"
)

func TestSelectKeepsWhatTheServicesNeed(t *testing.T) {
	load := func() *compose.Project {
		return loaded(t, map[string]string{"compose.yaml": `services:
  web: {image: web, depends_on: [app], volumes: ["pages:/pages"]}
  app: {image: app, depends_on: [db]}
  db: {image: db, volumes: ["data:/data"]}
  other: {image: other, volumes: ["else:/else"]}
volumes: {pages: {}, data: {}, else: {}}
`}, nil)
	}
	for _, c := range []struct {
		names             []string
		services, volumes []string
	}{
		{[]string{"web"}, []string{"app", "db", "web"}, []string{"data", "pages"}},
		{[]string{"db", "other"}, []string{"db", "other"}, []string{"data", "else"}},
		{[]string{"app", "app"}, []string{"app", "db"}, []string{"data"}},
	} {
		p := load()
		check(t, p.Select(c.names...))
		if got := slices.Sorted(maps.Keys(p.Services)); !slices.Equal(got, c.services) {
			t.Errorf("Select(%q) keeps services %q, want %q", c.names, got, c.services)
		}
		if got := slices.Sorted(maps.Keys(p.Volumes)); !slices.Equal(got, c.volumes) {
			t.Errorf("Select(%q) keeps volumes %q, want %q", c.names, got, c.volumes)
		}
	}
	if err := load().Select("webb"); err == nil || !strings.Contains(err.Error(), `"webb"`) || !strings.Contains(err.Error(), "app, db, other, web") {
		t.Errorf("an unknown service: %v", err)
	}
}
