package admin_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/wfmsim/admin"
)

func TestOnlyProgramsOfThisMachineAreServed(t *testing.T) {
	server := httptest.NewServer(admin.Handler(admin.Servers{}, func() admin.Info { return admin.Info{} }))
	defer server.Close()
	for name, change := range map[string]func(*http.Request){
		"a page of another site": func(r *http.Request) { r.Header.Set("Origin", "https://attacker.example") },
		"a rebound name":         func(r *http.Request) { r.Host = "attacker.example" },
	} {
		request := expect.Value(http.NewRequest(http.MethodGet, server.URL+"/v1/info", nil))(t)
		change(request)
		answer := expect.Value(http.DefaultClient.Do(request))(t)
		_ = answer.Body.Close()
		expect.Equal(t, answer.StatusCode, http.StatusForbidden, "%s: got %s", name, answer.Status)
	}
	if l, err := admin.Listen("0.0.0.0:0"); err == nil {
		t.Errorf("listens on %s", l.Addr())
	}
}
