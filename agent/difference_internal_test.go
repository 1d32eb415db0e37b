package agent

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/test/expect"
)

// revisionWith is a revision of components of a Compose file each.
func revisionWith(t *testing.T, files map[string]string, images map[string]digest.Digest) stagedRevision {
	t.Helper()
	var r stagedRevision
	for _, name := range []string{"main", "more"} {
		if yaml, ok := files[name]; ok {
			p := projectOf(t, yaml)
			p.Digest = digest.FromString(yaml)
			r.components = append(r.components, stagedComponent{name: name, project: p, images: images})
		}
	}
	return r
}

func noSize(string, digest.Digest) int64 { return 0 }

func TestWhatChangesBetweenComposeFiles(t *testing.T) {
	type change = control.ServiceChange
	type list = control.ListChange
	said := func(s string) *string { return &s }
	value := func(name string, from, to *string) []control.ValueChange {
		return []control.ValueChange{{Name: name, From: from, To: to}}
	}
	const ipv6 = "networks: {default: {enable_ipv6: true}}"
	for name, c := range map[string]struct {
		from, to       string // keys of the service web
		fromTop, toTop string // of the file
		want           change
	}{
		"nothing":                  {from: "command: a\nports: ['1:1', '2:2']\nvolumes: [./conf:/a]", to: "ports: ['2:2', '1:1']\ncommand: [a]\nvolumes: [./conf:/a]"},
		"environment that comes":   {to: "environment: {A: b}", want: change{Environment: value("A", nil, said("b"))}},
		"environment that goes":    {from: "environment: {A: b}", want: change{Environment: value("A", said("b"), nil)}},
		"environment that changes": {from: "environment: {A: b}", to: "environment: {A: c}", want: change{Environment: value("A", said("b"), said("c"))}},
		"a password":               {from: "environment: {DB_PASSWORD: b}", to: "environment: {DB_PASSWORD: c}", want: change{Environment: value("DB_PASSWORD", said("(changed)"), said("(changed)"))}},
		"a password that comes":    {to: "environment: {api_token: c}", want: change{Environment: value("api_token", nil, said("(changed)"))}},
		"a password in a URL":      {from: "environment: {URL: 'db://me:pw@host/x'}", to: "environment: {URL: none}", want: change{Environment: value("URL", said("(changed)"), said("(changed)"))}},
		"a long value":             {to: "environment: {A: " + strings.Repeat("x", 300) + "}", want: change{Environment: value("A", nil, said(strings.Repeat("x", 197)+"..."))}},
		"ports":                    {from: "ports: ['8080:80']", to: "ports: ['8443:443', '127.0.0.1:53:53/udp', '9000-9001:90', '70']", want: change{Ports: &list{Removed: []string{"0.0.0.0:8080->80/tcp"}, Added: []string{"0.0.0.0:8443->443/tcp", "0.0.0.0:9000-9001->90/tcp", "0.0.0.0:any->70/tcp", "127.0.0.1:53->53/udp"}}}},
		"an IPv6 port":             {to: "ports: ['[fd00::1]:8080:80', '81:81']", fromTop: ipv6, toTop: ipv6, want: change{Ports: &list{Added: []string{"0.0.0.0:81->81/tcp", "[::]:81->81/tcp", "[fd00::1]:8080->80/tcp"}}}},
		"volumes":                  {from: "volumes: [/srv/a:/a]", to: "volumes: ['/srv/a:/a:ro', /anonymous]\ntmpfs: ['/run:size=1m']", want: change{Volumes: &list{Removed: []string{"/srv/a:/a"}, Added: []string{"/anonymous", "/srv/a:/a:ro", "tmpfs:/run:size=1m"}}}},
		"volumes with names":       {to: "volumes: ['data:/a', 'nas:/b']", toTop: "volumes: {data: {}, nas: {driver_opts: {type: cifs, device: //nas/x, o: 'password=geheim'}}}", want: change{Volumes: &list{Added: []string{"data:/a", "nas (cifs //nas/x):/b"}}}},
		"options of a volume":      {from: "volumes: ['nas:/b']", to: "volumes: ['nas:/b']", fromTop: "volumes: {nas: {driver_opts: {type: cifs, device: //nas/x, o: 'password=geheim'}}}", toTop: "volumes: {nas: {driver_opts: {type: cifs, device: //nas/x, o: 'password=anders'}}}", want: change{Other: []string{"volumes"}}},
		"files of the package":     {from: "volumes: ['./conf:/a']", to: "volumes: ['./conf:/a']", toTop: "x-other: package", want: change{Other: []string{"files of the package"}}},
		"privileges":               {from: "cap_add: [SYS_TIME]", to: "privileged: true\nnetwork_mode: host\npid: host\ncap_add: [NET_ADMIN]\ndevices: [/dev/ttyS0]\nsecurity_opt: ['seccomp=unconfined', 'apparmor=mine']", want: change{Privileges: &list{Removed: []string{"cap_add SYS_TIME"}, Added: []string{"cap_add NET_ADMIN", "device /dev/ttyS0", "network host", "pid host", "privileged", "security_opt apparmor (custom)", "security_opt seccomp=unconfined"}}, Other: []string{"networks"}}},
		"a privileged hook":        {to: "pre_stop: [{command: a, privileged: true}]", want: change{Privileges: &list{Added: []string{"privileged hook"}}}},
		"what others have": {
			from: "networks: [n]", fromTop: "networks: {n: {}}",
			to: "pid: container:other\nnetworks: [n]\nvolumes: ['vol:/v']", toTop: "networks: {n: {name: plant}}\nvolumes: {vol: {external: true, name: other_v}}",
			want: change{
				Volumes:    &list{Added: []string{"other_v:/v"}},
				Privileges: &list{Added: []string{"pid container:other", "shared other", "shared other_v", "shared plant"}},
				Other:      []string{"networks"},
			},
		},
		"further keys":                     {from: "command: a", to: "command: b\nhealthcheck: {test: [CMD, a]}\nrestart: always\nmem_limit: 64m\ndeploy: {replicas: 2}\nuser: '1'\nsecurity_opt: [no-new-privileges]", want: change{Other: []string{"command", "deploy.replicas", "healthcheck", "resources", "restart", "security_opt", "user"}}},
		"no command and that of the image": {to: "command: []", want: change{Other: []string{"command"}}},
		"reserved CPUs":                    {to: "deploy: {resources: {reservations: {cpus: '0.5'}}}", want: change{Other: []string{"resources"}}},
		"content of configs":               {from: "configs: [c]", to: "configs: [c]", fromTop: "configs: {c: {content: a}}", toTop: "configs: {c: {content: b}}", want: change{Other: []string{"configs and secrets"}}},
		"how a network is made":            {from: "networks: [n]", to: "networks: [n]", fromTop: "networks: {n: {}}", toTop: "networks: {n: {internal: true}}", want: change{Other: []string{"networks"}}},
	} {
		t.Run(name, func(t *testing.T) {
			file := func(keys, top string) map[string]string {
				return map[string]string{"main": "services:\n  web:\n    image: a\n    " + strings.ReplaceAll(keys, "\n", "\n    ") + "\n" + top + "\n"}
			}
			from, to := revisionWith(t, file(c.from, c.fromTop), nil), revisionWith(t, file(c.to, c.toTop), nil)
			if name == "nothing" { // but where the keys stand
				to.components[0].project.Digest = from.components[0].project.Digest
			}
			var want []change
			if !reflect.DeepEqual(c.want, change{}) {
				c.want.Component, c.want.Service, c.want.Change = "main", "web", "changed"
				want = []change{c.want}
			}
			got := difference(from, to, noSize)
			if diff := cmp.Diff(want, got.Services, cmpopts.EquateEmpty()); diff != "" || got.Cut || len(got.Parameters) != 0 {
				t.Errorf("%+v, %v (-want +got):\n%s", got.Parameters, got.Cut, diff)
			}
		})
	}
}

func TestServicesThatComeAndGo(t *testing.T) {
	one, two := digest.FromString("1"), digest.FromString("2")
	from := revisionWith(t, map[string]string{
		"main": "services: {web: {image: 'nginx:1.26'}, old: {image: 'x.example/old:1', ports: ['1:1']}, same: {image: 'x.example/same:1'}}",
	}, map[string]digest.Digest{"docker.io/library/nginx:1.26": one, "x.example/old:1": one, "x.example/same:1": one})
	to := revisionWith(t, map[string]string{
		"main": "services: {web: {image: 'nginx:1.27'}, same: {image: 'x.example/same:1'}}",
		"more": "services: {new: {image: 'x.example/new:1', ports: ['1:1'], privileged: true, environment: {A: b}, volumes: ['/srv/a:/a']}}",
	}, map[string]digest.Digest{"docker.io/library/nginx:1.27": two, "x.example/new:1": two, "x.example/same:1": two})
	from.parameters, to.parameters = map[string]string{"a": "1", "b": "1", "d": "swordfish"}, map[string]string{"a": "1", "b": "2", "c": "3", "d": "the swordfishes"}
	to.secrets = []string{"swordfish"}
	size := func(ref string, d digest.Digest) int64 { return int64(len(ref)) }
	said := func(s string) *string { return &s }
	want := differ{
		Services: []control.ServiceChange{
			{Component: "main", Service: "old", Change: "removed", Image: &control.ImageChange{From: "x.example/old:1", FromDigest: one.String()}},
			{Component: "main", Service: "same", Change: "changed", Image: &control.ImageChange{From: "x.example/same:1", To: "x.example/same:1", FromDigest: one.String(), ToDigest: two.String(), Bytes: 16}},
			{Component: "main", Service: "web", Change: "changed", Image: &control.ImageChange{From: "nginx:1.26", To: "nginx:1.27", FromDigest: one.String(), ToDigest: two.String(), Bytes: 28}},
			{
				Component: "more", Service: "new", Change: "added", Image: &control.ImageChange{To: "x.example/new:1", ToDigest: two.String(), Bytes: 15},
				Ports: &control.ListChange{Added: []string{"0.0.0.0:1->1/tcp"}}, Volumes: &control.ListChange{Added: []string{"/srv/a:/a"}}, Privileges: &control.ListChange{Added: []string{"privileged"}},
			},
		},
		Parameters: []control.ValueChange{{Name: "b", From: said("1"), To: said("2")}, {Name: "c", To: said("3")}, {Name: "d", From: said("(changed)"), To: said("(changed)")}},
	}
	for range 3 { // in the same order each time
		got := difference(from, to, size)
		if diff := cmp.Diff(want.Services, got.Services); diff != "" || got.Cut {
			t.Errorf("cut %v (-want +got):\n%s", got.Cut, diff)
		}
		expect.Equal(t, got.Parameters, want.Parameters, "parameters")
	}
	if got := difference(to, stagedRevision{}, size); len(got.Services) != 3 || got.Services[0].Change != "removed" || got.Services[2].Change != "removed" {
		t.Errorf("a removal does %+v", got.Services)
	}
	got := difference(stagedRevision{}, stagedRevision{}, size)
	expect.True(t, len(got.Services)+len(got.Parameters) == 0 && !got.Cut, "nothing does %+v", got)
}

func TestDifferencesAreBounded(t *testing.T) {
	var ports, many strings.Builder
	for n := range 200 {
		fmt.Fprintf(&ports, "'%d:80', ", 20000+n)
	}
	many.WriteString("services:\n")
	for n := range 4 {
		fmt.Fprintf(&many, "  s%d: {image: a, ports: [%s]}\n", n, strings.ReplaceAll(ports.String(), "'2", fmt.Sprintf("'%d", n+1)))
	}
	to := revisionWith(t, map[string]string{"main": many.String()}, nil)
	got := difference(stagedRevision{}, to, noSize)
	lines := 0
	for _, s := range got.Services {
		lines += 1 + len(s.Ports.Added)
	}
	expect.True(t, got.Cut && lines <= maxDifferences && len(got.Services) == 1, "%d lines of %d services, cut %v", lines, len(got.Services), got.Cut)
	to.parameters = map[string]string{}
	for n := range 2 * maxDifferences {
		to.parameters[fmt.Sprint(n)] = "x"
	}
	got = difference(stagedRevision{}, to, noSize)
	expect.Equal(t, len(got.Parameters) <= maxDifferences && len(got.Services) == 0 && got.Cut, true, "%d parameters are cut", len(got.Parameters))
}

// Whatever makes a container is compared: who adds a field has to say as what.
func TestEveryFieldOfAServiceIsCompared(t *testing.T) {
	fields := reflect.TypeFor[compose.Service]()
	for i := range fields.NumField() {
		_, ok := fields.Field(i).Tag.Lookup("key")
		expect.True(t, ok, "%s has no key under which its change is told", fields.Field(i).Name)
	}
}
