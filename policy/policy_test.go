package policy_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/margolite/margolite/policy"
)

func TestAGateWithoutRulesIsOpen(t *testing.T) {
	gate, err := policy.New(policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []policy.ChangeKind{policy.Install, policy.Update, policy.Remove} {
		for _, now := range []time.Time{{}, time.Unix(0, 0), time.Date(2026, 3, 29, 2, 30, 0, 0, time.UTC)} {
			got := gate.Decide(policy.Change{Deployment: "a", Kind: kind}, policy.Situation{Now: now})
			if want := (policy.Verdict{Go: true}); !reflect.DeepEqual(got, want) {
				t.Errorf("%s at %v: got %+v, want %+v", kind, now, got, want)
			}
		}
	}
}
