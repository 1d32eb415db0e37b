package agent_test

import (
	"strings"
	"testing"
	"time"
)

// timeout gives a document's only component a timeout.
func timeout(doc, timeout string) string {
	return strings.Replace(doc, "revision:", "timeout: "+timeout+", revision:", 1)
}

// What the WFM gives as timeout is bounded by the device, which says so.
func TestAD08TheTimeoutIsBoundedByTheDevice(t *testing.T) {
	var l log
	s := newSite(t, func(s *site) {
		s.maxTimeout = 100 * time.Millisecond
		logged(&l)(s)
	})
	s.runtime.block("apply 1.0.0")
	s.publish(1, map[string]string{first: timeout(document(first, "1.0.0"), "999999m")})
	s.heard(first, "pending@1", "installing@1", "failed@1")
	s.heardError(first, "TIMEOUT")
	if said := l.String(); !strings.Contains(said, "timeout shortened") || !strings.Contains(said, "timeout=16666h39m0s") || !strings.Contains(said, "maxTimeout=100ms") {
		t.Errorf("the log says %s", said)
	}
}
