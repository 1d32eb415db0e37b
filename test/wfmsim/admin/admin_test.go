package admin_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/admin"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/registry"
)

const deployment = "a3e2f5dc-912e-494f-8395-52cf3769bc06"

// start serves the administration of a WFM that listens nowhere.
func start(t *testing.T) (admin.Client, *wfmsim.Server) {
	t.Helper()
	authority, err := pki.NewAuthority("plant.example", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	svid, err := authority.IssueWFM("wfm-1")
	if err != nil {
		t.Fatal(err)
	}
	wfm, err := wfmsim.New(wfmsim.Options{
		ID: identity.ID{TrustDomain: "plant.example", WFM: "wfm-1"}, SVID: svid.TLS(), Bundle: authority.Bundle(),
	})
	if err != nil {
		t.Fatal(err)
	}
	images, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(admin.Handler(admin.Servers{WFM: wfm, Registry: images}, func() admin.Info {
		return admin.Info{DefaultClient: "gw", Clients: []string{"gw"}, RegistryHost: "registry.example"}
	}))
	t.Cleanup(server.Close)
	return admin.Client{URL: server.URL}, wfm
}

func document(t *testing.T) []byte {
	t.Helper()
	text, err := wfmsim.Deployment{
		ID: deployment, DeviceID: "gw",
		Components: []wfmsim.Component{{Name: "app", Repository: "registry.example/app", Revision: "1.0.0"}},
	}.Document()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestDeploymentsComeAndGo(t *testing.T) {
	client, wfm := start(t)
	ctx := context.Background()
	published, err := client.Publish(ctx, document(t))
	if err != nil || published.Version != 2 || published.Client != "gw" || published.DeploymentID != deployment {
		t.Fatalf("got %+v, %v", published, err)
	}
	list, err := client.Deployments(ctx)
	if err != nil || len(list) != 1 || list[0].Name != "app" || list[0].Digest != published.Digest {
		t.Errorf("got %+v, %v", list, err)
	}
	client.For = "another"
	if list, err := client.Deployments(ctx); err != nil || len(list) != 0 {
		t.Errorf("another client: got %+v, %v", list, err)
	}
	client.For = ""
	removed, err := client.Remove(ctx, deployment)
	if err != nil || removed.Version != 3 || wfm.Version("gw") != 3 {
		t.Errorf("got %+v, %v", removed, err)
	}
	if _, err := client.Remove(ctx, deployment); err == nil || !strings.Contains(err.Error(), wfmsim.ErrNotFound.Error()) {
		t.Errorf("removed again: %v", err)
	}
	if _, err := client.Publish(ctx, []byte("hello: world")); err == nil {
		t.Error("what is no document was published")
	}
}

func TestFaultsAreSwitched(t *testing.T) {
	client, wfm := start(t)
	ctx := context.Background()
	for _, server := range []string{"wfm", "registry"} {
		injected, err := client.Inject(ctx, server, fault.Fault{Endpoint: "manifest", Kind: fault.Delay, Wait: time.Second, Times: 2})
		if err != nil || injected.ID != 1 {
			t.Errorf("%s: got %+v, %v", server, injected, err)
		}
		active, err := client.Faults(ctx, server)
		if err != nil || len(active) != 1 || active[0].Wait != time.Second {
			t.Errorf("%s: got %+v, %v", server, active, err)
		}
		if left, err := client.Clear(ctx, server, "manifest"); err != nil || len(left) != 0 {
			t.Errorf("%s: got %+v, %v", server, left, err)
		}
	}
	if active := wfm.Faults().Active(); len(active) != 0 {
		t.Errorf("got %v", active)
	}
	if _, err := client.Inject(ctx, "wfm", fault.Fault{Kind: "explode"}); err == nil {
		t.Error("an unknown kind was injected")
	}
	if _, err := client.Faults(ctx, "printer"); err == nil {
		t.Error("an unknown server has faults")
	}
}

func TestVersionsAndClientsAreChanged(t *testing.T) {
	client, wfm := start(t)
	ctx := context.Background()
	if _, err := client.Publish(ctx, document(t)); err != nil {
		t.Fatal(err)
	}
	if err := client.SetVersion(ctx, "gw", 1<<64-1); err != nil || wfm.Version("gw") != 1<<64-1 {
		t.Errorf("version %d, %v", wfm.Version("gw"), err)
	}
	if err := client.Restart(ctx, "gw"); err != nil || wfm.Version("gw") != 1 {
		t.Errorf("version %d, %v", wfm.Version("gw"), err)
	}
	if err := client.Forget(ctx, "gw"); err != nil {
		t.Error(err)
	}
	if pending, err := client.Pending(ctx); err != nil || len(pending) != 0 {
		t.Errorf("got %v, %v", pending, err)
	}
	if _, err := client.Approve(ctx, "nobody"); err == nil || !strings.Contains(err.Error(), wfmsim.ErrNotPending.Error()) {
		t.Errorf("got %v", err)
	}
	if shown, err := client.Shown(ctx); err != nil || len(shown) != 0 {
		t.Errorf("got %v, %v", shown, err)
	}
	if _, err := client.Faults(ctx, "mis"); err == nil {
		t.Error("a server that is not there has faults")
	}
}

func TestStatusesAreWaitedForNoLongerThanAsked(t *testing.T) {
	client, _ := start(t)
	reports, err := client.Statuses(context.Background(), "", 0, 20*time.Millisecond)
	if err != nil || len(reports) != 0 {
		t.Errorf("got %v, %v", reports, err)
	}
}

func TestNothingElseIsAnEmptyList(t *testing.T) {
	client, _ := start(t)
	devices, err := client.Devices(context.Background())
	if err != nil || len(devices) != 0 {
		t.Errorf("devices: %v, %v", devices, err)
	}
	requests, err := client.Requests(context.Background(), "wfm", 5)
	if err != nil || len(requests) != 0 {
		t.Errorf("requests: %v, %v", requests, err)
	}
}

func TestOnlyProgramsOfThisMachineAreServed(t *testing.T) {
	client, _ := start(t)
	for name, change := range map[string]func(*http.Request){
		"a page of another site": func(r *http.Request) { r.Header.Set("Origin", "https://attacker.example") },
		"a rebound name":         func(r *http.Request) { r.Host = "attacker.example" },
	} {
		request, err := http.NewRequest(http.MethodGet, client.URL+"/v1/info", nil)
		if err != nil {
			t.Fatal(err)
		}
		change(request)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusForbidden {
			t.Errorf("%s: got %s", name, answer.Status)
		}
	}
	if l, err := admin.Listen("0.0.0.0:0"); err == nil {
		t.Errorf("listens on %s", l.Addr())
	}
}

func TestNobodyThereIsSaidSo(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := (admin.Client{URL: "http://" + address}).Info(context.Background()); !errors.Is(err, admin.ErrNotRunning) {
		t.Errorf("got %v", err)
	}
}
