package container_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
)

func fullLabels() container.Labels {
	address := netip.MustParseAddr("172.29.0.3")
	return container.Labels{
		Project: "shop",
		Service: "web",
		Number:  1,
		Hash:    strings.Repeat("ab", 32),
		Image:   "docker.io/library/nginx:1",
		Root:    "sha256:" + strings.Repeat("0", 64),
		DependsOn: []compose.Dependency{
			{Service: "cache", Condition: compose.ConditionStarted},
			{Service: "db", Condition: compose.ConditionHealthy, Required: true, Restart: true},
		},
		Caller: map[string]string{"org.example/deployment": "d1"},
		Details: container.Details{
			Restart:    compose.Restart{Mode: compose.RestartOnFailure, MaxRetries: 3, Delay: time.Second, Window: time.Minute},
			StopSignal: "SIGQUIT",
			StopGrace:  10 * time.Second,
			Seat: container.Seat{
				Sandbox: network.Sandbox{
					Project: "shop", Service: "web", Number: 1, Hostname: "web", Names: []string{"front", "www"},
					Attached: []network.Attachment{{
						Network: network.Network{
							Name: "shop_default", Bridge: "mgl-1234",
							Subnet: netip.MustParsePrefix("172.29.0.0/24"), Gateway: netip.MustParseAddr("172.29.0.1"),
						},
						Address: address,
					}},
				},
				Ports: []network.Port{
					{Protocol: "tcp", HostIP: netip.IPv4Unspecified(), HostPort: 8080, ContainerPort: 80, Address: address},
					{Protocol: "udp", HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: 53, ContainerPort: 5353, Address: address},
				},
				Joins: []container.Join{{Kind: "pid", Service: "db", Number: 1}},
			},
			Volumes: []container.Volume{
				{Name: "data"},
				{Name: "web-1~0123abcd"},
				{Name: "films", Project: "media", Type: "nfs", Device: ":/films", Options: []string{"addr=nas", "ro"}},
			},
			Subpaths:     []container.Subpath{{Volume: 2, Path: "new/ones"}},
			Files:        []container.File{{Name: "secret-0", UID: 1000, GID: 1000, Mode: 0o400}},
			Healthcheck:  &compose.Healthcheck{Test: []string{"CMD", "true"}, Interval: time.Second, Retries: 2},
			PreStop:      []compose.Hook{{Command: []string{"sync"}, Environment: map[string]string{"A": "b"}}},
			TTY:          true,
			Logging:      compose.Logging{MaxSize: 1 << 20, MaxFile: 2},
			SharedMemory: 64 << 20,
		},
	}
}

// record is what containerd keeps of the details, as bytes.
func record(t testing.TB, l container.Labels) []byte {
	t.Helper()
	return expect.Value(json.Marshal(l.Details))(t)
}

func TestLabelsSurviveContainerd(t *testing.T) {
	tests := map[string]func(*container.Labels){
		"everything set":          func(*container.Labels) {},
		"a done one-shot service": func(l *container.Labels) { l.Exited = true },
		"nothing optional": func(l *container.Labels) {
			l.DependsOn, l.Caller = nil, nil
			l.Details = container.Details{Restart: compose.Restart{Mode: compose.RestartNo}}
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			want := fullLabels()
			change(&want)
			encoded := expect.Value(want.Encode(map[string]string{"traefik.enable": "true"}, map[string]string{"nerdctl/namespace": "margo"}))(t)
			details := record(t, want)
			newer := append([]byte(`{"invented":{"later":[1]},`), details[1:]...)
			for version, details := range map[string][]byte{"ours": details, "a newer one": newer} {
				expect.Equal(t, expect.Value(container.Decode(encoded, details))(t), want, "%s", version)
			}
			expect.Equal(t, encoded["traefik.enable"], "true", "label of the Compose file")
		})
	}
}

func TestLabelsAreReadByKnownTools(t *testing.T) {
	l := fullLabels()
	encoded := expect.Value(l.Encode(nil, map[string]string{"nerdctl/namespace": "margo"}))(t)
	for key, want := range map[string]string{
		"com.docker.compose.project":          "shop",
		"com.docker.compose.service":          "web",
		"com.docker.compose.container-number": "1",
		"com.docker.compose.config-hash":      l.Hash,
		"nerdctl/name":                        "shop-web-1",
		"nerdctl/namespace":                   "margo",
		"nerdctl/hostname":                    "web",
		"nerdctl/networks":                    `["shop_default"]`,
		"nerdctl/ports": `[{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":"0.0.0.0"},` +
			`{"HostPort":53,"ContainerPort":5353,"Protocol":"udp","HostIP":"127.0.0.1"}]`,
		"nerdctl/stop-timeout":                   "10",
		"io.containerd.image.config.stop-signal": "SIGQUIT",
		"nerdctl/healthcheck":                    `{"test":["CMD","true"],"interval":1000000000,"retries":2}`,
	} {
		expect.Equal(t, encoded[key], want, "label %s", key)
	}

	l.Name, l.Sandbox.Attached = "shop", nil
	encoded = expect.Value(l.Encode(nil, nil))(t)
	expect.Equal(t, []string{encoded["nerdctl/name"], encoded["nerdctl/networks"]}, []string{"shop", `["none"]`}, "name and networks")
}

func TestALabelBeyondTheLimitIsRefused(t *testing.T) {
	_, err := fullLabels().Encode(map[string]string{"long": strings.Repeat("x", 5000)}, nil)
	expect.ErrorWith(t, err, "containerd allows", "encoding")
}

func TestDecodeRefusesWhatItCannotTrust(t *testing.T) {
	good := expect.Value(fullLabels().Encode(nil, nil))(t)
	tests := map[string]struct {
		label, value string
		details      string // instead of the good ones
	}{
		"a project that is a path":           {label: container.OwnerKey, value: "../../etc"},
		"a service that is a path":           {label: "margolite/service", value: "a/b"},
		"no hash":                            {label: "margolite/config-hash"},
		"replica zero":                       {label: "margolite/number", value: "0"},
		"dependencies that are no list":      {label: "margolite/depends-on", value: "{}"},
		"a dependency that is a path":        {label: "margolite/depends-on", value: `[{"service":"../x"}]`},
		"details that are no JSON":           {details: `{`},
		"an unknown restart policy":          {details: `{"restart":{"policy":"sometimes"}}`},
		"not a restart policy":               {details: `{}`},
		"a negative time to stop":            {details: `{"restart":{"policy":"no"},"stopGrace":-1}`},
		"a signal that is none":              {details: `{"restart":{"policy":"no"},"stopSignal":"SIGSOON"}`},
		"a volume that is a path":            {details: `{"restart":{"policy":"no"},"volumes":[{"name":"../x"}]}`},
		"an anonymous volume that is a path": {details: `{"restart":{"policy":"no"},"volumes":[{"name":"web-1~/../../x"}]}`},
		"a volume of a project up above":     {details: `{"restart":{"policy":"no"},"volumes":[{"name":"x","project":".."}]}`},
		"a volume that runs a program":       {details: `{"restart":{"policy":"no"},"volumes":[{"name":"x","type":"fuse.sshfs"}]}`},
		"two options in one":                 {details: `{"restart":{"policy":"no"},"volumes":[{"name":"x","type":"nfs","options":["ro,remount"]}]}`},
		"a part of no volume":                {details: `{"restart":{"policy":"no"},"subpaths":[{"volume":0,"path":"x"}]}`},
		"a file that is a path":              {details: `{"restart":{"policy":"no"},"files":[{"name":"../secret"}]}`},
		"a source that is relative":          {details: `{"restart":{"policy":"no"},"sources":[{"path":"srv","real":"/srv"}]}`},
		"a sandbox that is a path":           {details: `{"restart":{"policy":"no"},"sandbox":{"project":"..","service":"web","number":1}}`},
		"a join with a path":                 {details: `{"restart":{"policy":"no"},"joins":[{"kind":"pid","service":"../x","number":1}]}`},
		"a port without protocol":            {details: `{"restart":{"policy":"no"},"ports":[{"hostPort":1,"containerPort":2}]}`},
		"a port that is none":                {details: `{"restart":{"policy":"no"},"ports":[{"protocol":"tcp","hostPort":70000}]}`},
		"an address that is none":            {details: `{"restart":{"policy":"no"},"ports":[{"protocol":"tcp","address":"example.com"}]}`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			labels, details := maps.Clone(good), record(t, fullLabels())
			if test.label != "" {
				labels[test.label] = test.value
			}
			if test.details != "" {
				details = []byte(test.details)
			}
			expect.ErrorWith(t, expect.ErrorOf(container.Decode(labels, details)), "", "decoding")
		})
	}
	expect.ErrorWith(t, expect.ErrorOf(container.Decode(good, nil)), "", "a record without details")
	expect.Error(t, expect.ErrorOf(container.Decode(map[string]string{"nerdctl/name": "x"}, nil)), container.ErrForeign, "foreign container")
}

func FuzzDecode(f *testing.F) {
	good := expect.Value(fullLabels().Encode(nil, nil))(f)
	f.Add("web", good["margolite/depends-on"], record(f, fullLabels()))
	f.Add("../web", `[{"service":"a"}]`, []byte(`{"restart":{"policy":"no"}}`))
	f.Add("web", "", []byte(`{"restart":{"policy":"no"},"volumes":[{"name":"a~b"}],"subpaths":[{"volume":7,"path":"/"}]}`))
	f.Fuzz(func(t *testing.T, service, dependsOn string, details []byte) {
		labels := maps.Clone(good)
		labels["margolite/service"], labels["margolite/depends-on"] = service, dependsOn
		l, err := container.Decode(labels, details)
		if err != nil {
			return
		}
		names := []string{l.Project, l.Service}
		for _, v := range l.Volumes {
			names = append(names, strings.Replace(v.Name, "~", "-", 1))
		}
		for _, f := range l.Files {
			names = append(names, f.Name)
		}
		for _, name := range names {
			expect.True(t, compose.ValidName(name), "name %q was let through", name)
		}
		again, err := l.Encode(nil, nil)
		if err != nil {
			return // such as a label that is too long
		}
		second, err := container.Decode(again, record(t, l))
		if before, after := record(t, l), record(t, second); err != nil || !bytes.Equal(before, after) {
			t.Errorf("decoded\n%s\nthen\n%s, %v", before, after, err)
		}
	})
}
