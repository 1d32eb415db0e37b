package wfmsim_test

import (
	"os"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

func TestPublishListsDeparturesFromRC3(t *testing.T) {
	r := newRig(t, nil)
	for name, departs := range map[string]bool{
		"DesiredState-001.yaml": false, "DesiredState-002.yaml": false, "gateway-autonomous.yaml": false, "gateway-directed.yaml": false,
		"ApplicationDeployment-compose.yaml": true, "older/DesiredState-001.yaml": true, "older/DesiredState-002.yaml": true,
	} {
		p := expect.Value(r.wfm.Publish(deviceID, expect.Value(os.ReadFile("../testdata/spec/valid/"+name))(t)))(t)
		expect.Equal(t, len(p.Warnings) > 0, departs, "%s departs: %q", name, p.Warnings)
	}
}
