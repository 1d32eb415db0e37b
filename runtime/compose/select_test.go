package compose_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
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
		expect.Check(t, p.Select(c.names...))
		expect.Equal(t, slices.Sorted(maps.Keys(p.Services)), c.services, "services with %q", c.names)
		expect.Equal(t, slices.Sorted(maps.Keys(p.Volumes)), c.volumes, "volumes with %q", c.names)
	}
	expect.ErrorWith(t, load().Select("webb"), `unknown service "webb"; known: app, db, other, web`, "an unknown service")
}
