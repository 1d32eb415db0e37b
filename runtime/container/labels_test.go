package container_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/network"
)

func fullLabels() container.Labels {
	address := netip.MustParseAddr("172.29.0.3")
	return container.Labels{
		Project:    "shop",
		Service:    "web",
		Number:     1,
		Hash:       strings.Repeat("ab", 32),
		Image:      "docker.io/library/nginx:1",
		Restart:    container.Restart{Policy: container.OnFailure, Max: 3},
		StopSignal: "SIGQUIT",
		StopGrace:  10 * time.Second,
		Hostname:   "web",
		Names:      []string{"front", "www"},
		Network: network.Network{
			Project: "shop", Name: "default", Bridge: "mgl-1234",
			Subnet: netip.MustParsePrefix("172.29.0.0/24"), Gateway: netip.MustParseAddr("172.29.0.1"),
		},
		Address: address,
		Ports: []network.Port{
			{Protocol: "tcp", HostIP: netip.IPv4Unspecified(), HostPort: 8080, ContainerPort: 80, Address: address},
			{Protocol: "udp", HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: 53, ContainerPort: 5353, Address: address},
		},
		Volumes:   []string{"data", "cache"},
		HostDirs:  []string{"/srv/a,b", "/run/x"},
		Root:      "sha256:" + strings.Repeat("0", 64),
		DependsOn: []string{"db"},
		Caller:    map[string]string{"org.example/deployment": "d1"},
	}
}

func TestLabelsSurviveContainerd(t *testing.T) {
	tests := map[string]func(*container.Labels){
		"everything set":          func(*container.Labels) {},
		"a done one-shot service": func(l *container.Labels) { l.Exited = true },
		"nothing optional": func(l *container.Labels) {
			l.Names, l.Ports, l.Volumes, l.HostDirs, l.DependsOn, l.Caller = nil, nil, nil, nil, nil, nil
			l.Restart = container.Restart{Policy: container.Never}
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			want := fullLabels()
			change(&want)
			encoded, err := want.Encode(container.Shown{Namespace: "margo", Service: map[string]string{"traefik.enable": "true"}})
			if err != nil {
				t.Fatal(err)
			}
			got, err := container.Decode(encoded)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got\n%+v\nwant\n%+v", got, want)
			}
			if encoded["traefik.enable"] != "true" {
				t.Error("the label of the Compose file is missing")
			}
		})
	}
}

func TestLabelsAreReadByKnownTools(t *testing.T) {
	l := fullLabels()
	encoded, err := l.Encode(container.Shown{Namespace: "margo", LogURI: "file:///run/x.log", Platform: "linux/arm64"})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"com.docker.compose.project":          "shop",
		"com.docker.compose.service":          "web",
		"com.docker.compose.container-number": "1",
		"com.docker.compose.config-hash":      l.Hash,
		"nerdctl/name":                        "shop-web-1",
		"nerdctl/namespace":                   "margo",
		"nerdctl/hostname":                    "web",
		"nerdctl/log-uri":                     "file:///run/x.log",
		"nerdctl/networks":                    `["shop_default"]`,
		"nerdctl/platform":                    "linux/arm64",
		"nerdctl/ports": `[{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":"0.0.0.0"},` +
			`{"HostPort":53,"ContainerPort":5353,"Protocol":"udp","HostIP":"127.0.0.1"}]`,
	} {
		if encoded[key] != want {
			t.Errorf("label %s is %q, want %q", key, encoded[key], want)
		}
	}
}

func TestLabelsThatAreRefused(t *testing.T) {
	tests := map[string]struct {
		labels map[string]string
		want   string
	}{
		"a Compose file that plays containerd": {map[string]string{"containerd.io/restart.status": "running"}, "reserved"},
		"a Compose file that plays us":         {map[string]string{container.OwnerKey: "other"}, "reserved"},
		"a label beyond containerd's limit":    {map[string]string{"long": strings.Repeat("x", 5000)}, "containerd allows"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := fullLabels().Encode(container.Shown{Service: test.labels})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestDecodeRefusesWhatItCannotTrust(t *testing.T) {
	good, err := fullLabels().Encode(container.Shown{})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][2]string{
		"a project that is a path":     {container.OwnerKey, "../../etc"},
		"a service that is a path":     {"margolite/service", "a/b"},
		"a volume that is a path":      {"margolite/volumes", "data,../x"},
		"no hash":                      {"margolite/config-hash", ""},
		"replica zero":                 {"margolite/number", "0"},
		"an unknown restart policy":    {"margolite/restart", "sometimes"},
		"a port without protocol":      {"margolite/ports", "0.0.0.0:1:2"},
		"a port that is none":          {"margolite/ports", "0.0.0.0:1:70000/tcp"},
		"an address that is none":      {"margolite/address", "example.com"},
		"a network that is no JSON":    {"margolite/network", "{"},
		"a negative time to stop":      {"margolite/stop-grace", "-1s"},
		"directories that are no list": {"margolite/host-dirs", "{}"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			labels := maps.Clone(good)
			labels[test[0]] = test[1]
			if l, err := container.Decode(labels); err == nil {
				t.Errorf("got %+v, want an error", l)
			}
		})
	}
	if _, err := container.Decode(map[string]string{"nerdctl/name": "x"}); !errors.Is(err, container.ErrForeign) {
		t.Errorf("got %v for a foreign container, want ErrForeign", err)
	}
}

func FuzzDecode(f *testing.F) {
	good, err := fullLabels().Encode(container.Shown{})
	if err != nil {
		f.Fatal(err)
	}
	keys := []string{"margolite/ports", "margolite/network", "margolite/restart", "margolite/volumes", "margolite/host-dirs", "margolite/caller-labels"}
	for i, key := range keys {
		f.Add(i, good[key])
	}
	f.Add(0, "::1:8080:80/tcp,::")
	f.Add(4, "[]")
	f.Fuzz(func(t *testing.T, key int, value string) {
		labels := maps.Clone(good)
		labels[keys[uint(key)%uint(len(keys))]] = value
		l, err := container.Decode(labels)
		if err != nil {
			return
		}
		for _, volume := range l.Volumes {
			if !container.ValidName(volume) {
				t.Errorf("volume %q was let through", volume)
			}
		}
		again, err := l.Encode(container.Shown{})
		if err != nil {
			return // such as a label that is too long, or reserved
		}
		second, err := container.Decode(again)
		if before, after := fmt.Sprintf("%+v", l), fmt.Sprintf("%+v", second); err != nil || before != after {
			t.Errorf("decoded\n%s\nthen\n%s, %v", before, after, err)
		}
	})
}

func TestRestart(t *testing.T) {
	tests := []struct {
		policy   string
		code     int
		failures int
		again    bool
		oneShot  bool
	}{
		{"", 1, 0, false, true},
		{"no", 0, 0, false, true},
		{"always", 0, 100, true, false},
		{"unless-stopped", 137, 100, true, false},
		{"on-failure", 0, 0, false, true},
		{"on-failure", 1, 100, true, true},
		{"on-failure:2", 1, 1, true, true},
		{"on-failure:2", 1, 2, false, true},
	}
	for _, test := range tests {
		r, err := container.ParseRestart(test.policy)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.After(test.code, test.failures); got != test.again {
			t.Errorf("%q after code %d and %d failures: restarted %v, want %v", test.policy, test.code, test.failures, got, test.again)
		}
		if got := r.OneShot(); got != test.oneShot {
			t.Errorf("%q is one-shot: %v, want %v", test.policy, got, test.oneShot)
		}
	}
	for _, bad := range []string{"never", "always:1", "on-failure:", "on-failure:-1", "on-failure:x"} {
		if r, err := container.ParseRestart(bad); err == nil {
			t.Errorf("%q was read as %v, want an error", bad, r)
		}
	}
}
