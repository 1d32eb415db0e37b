package agent_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// log is what an agent logged.
type log struct {
	guarded
	text bytes.Buffer
}

func (l *log) Write(p []byte) (n int, err error) {
	l.set(func() { n, err = l.text.Write(p) })
	return n, err
}

// with are the lines that have all of some texts.
func (l *log) with(texts ...string) (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			lines = append(lines, line)
		}
	}
	return lines
}

// logged lets a site write what it logs into l.
func logged(l *log) func(*site) {
	return func(s *site) { s.logger = slog.New(slog.NewTextHandler(l, nil)) }
}

// errUnreachable is what no answer looks like.
var errUnreachable = errors.New("connection refused")

// Components come in the order of the document, and none before the one in front
// of it runs; each step is told. Installed is said once all of them are applied.
func TestAD06AD13ST02ST17ComponentsInOrder(t *testing.T) {
	simulated(t, func(*site) {}, func(t *testing.T, s *site) {
		byName := documentOf(first, map[string]string{"a": "1.0.0", "b": "2.0.0"})
		begun, release := s.runtime.hold("apply 1.0.0") // which is b now
		last, releaseLast := s.runtime.hold("apply 2.0.0")
		s.publish(1, map[string]string{first: strings.NewReplacer("- name: a", "- name: b", "- name: b", "- name: a").Replace(byName)})
		<-begun
		time.Sleep(time.Second)
		synctest.Wait()
		s.made("apply 2.0.0", 0)
		release()
		<-last
		s.heardWithin(time.Minute, first, "pending@1", "installing@1", "installing@1")
		time.Sleep(time.Second)
		synctest.Wait()
		s.heard(first, "pending@1", "installing@1", "installing@1")
		releaseLast()
		s.heardWithin(time.Minute, first, "pending@1", "installing@1", "installing@1", "installed@1")
		var got []string
		for _, r := range s.wfm.told(first) {
			line := string(r.State)
			for _, c := range r.Components {
				line += fmt.Sprintf(" %s=%s", c.Name, c.State)
			}
			got = append(got, line)
		}
		want := []string{
			"pending b=pending a=pending",
			"installing b=installing a=pending",
			"installing b=installed a=installing",
			"installed b=installed a=installed",
		}
		expect.Equal(t, got, want, "reports")
	})
}

func TestFailuresAreReportedWhole(t *testing.T) {
	s := newSite(t)
	s.runtime.fail("apply 2.0.0", runtime.Exited)
	s.publish(1, map[string]string{first: documentOf(first, map[string]string{"a": "1.0.0", "b": "2.0.0"})})
	s.heard(first, "pending@1", "installing@1", "installing@1", "failed@1")
	last := s.wfm.last(first)
	expect.Equal(t, len(last.Components), 2, "components")
	a, b := last.Components[0], last.Components[1]
	t.Run("ST-05 each component has an entry", func(t *testing.T) {
		expect.Equal(t, []string{a.Name, b.Name}, []string{"a", "b"}, "components")
	})
	t.Run("ST-04 the overall state is that of the component that failed", func(t *testing.T) {
		expect.Equal(t, []margo.State{last.State, a.State, b.State}, []margo.State{margo.Failed, margo.Installed, margo.Failed}, "states")
	})
	t.Run("ST-07 errors have code, source and message", func(t *testing.T) {
		for _, e := range []*margo.Fault{last.Error, b.Error} {
			expect.True(t, e != nil && e.Code != "" && e.Source != "" && e.Message != "", "error is %+v", e)
		}
	})
	t.Run("ST-08 they come from the deployment and from the component", func(t *testing.T) {
		expect.Equal(t, []string{last.Error.Source, b.Error.Source}, []string{"app", "b"}, "sources")
		expect.Equal(t, a.Error, nil, "error of the other component")
	})
	t.Run("ST-09 they say what failed", func(t *testing.T) {
		s.heardError(first, "CONTAINER_EXITED", "apply 2.0.0 fails")
	})
}

// Weeks without a network, and a kill at the end of them: the WFM is told where
// each deployment stands, and that the one which is gone is gone.
func TestPOL05ReportsOutliveWeeksOffline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.bothInstalled()
		s.publish(2, map[string]string{first: document(first, "2.0.0"), second: document(second, "1.0.0")})
		s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "installing@2", "installed@2")
		s.quiet()

		// The WFM is just reached for the manifest, and for no report of it.
		s.wfm.fail("status", errUnreachable)
		begun, release := s.runtime.hold("remove " + first + "-main")
		s.publish(3, map[string]string{second: document(second, "1.0.0")})
		<-begun
		synctest.Wait()
		s.wfm.failAll(errUnreachable)
		release()
		s.gone()
		writes := s.store.Writes()
		for range 21 {
			time.Sleep(24 * time.Hour)
		}
		s.wroteNothing(writes)
		s.restart()
		time.Sleep(24 * time.Hour)
		s.wfm.failAll(nil)
		s.sync()
		s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "installing@2", "installed@2", "removed@3")
		s.quiet()
	})
}

// gone waits until there is no record of the first deployment any more.
func (s *site) gone() {
	s.t.Helper()
	s.eventually("it is gone", func() bool {
		_, err := s.store.Deployment(first)
		return errors.Is(err, store.ErrNotFound)
	})
}

// settled waits until deployments are as they should be.
func (s *site) settled(ids ...string) {
	s.t.Helper()
	s.eventually("all are installed", func() bool {
		deployments, err := s.store.Deployments()
		return err == nil && len(deployments) == len(ids) && !slices.ContainsFunc(deployments, func(d store.Deployment) bool {
			return d.Phase != "active"
		})
	})
}

// Nobody's reports get through while the device is not authorised. They are all
// kept, and one is tried with increasing delays, whenever the next poll is, and
// with each poll that is answered.
func TestERR01RefusedReportsAreTriedWithoutPolls(t *testing.T) {
	for name, test := range map[string]struct {
		problem     *wfm.Error
		least, most int // tries within five hours
	}{
		"refused":                    {answered(403, ""), 60, 125},
		"the relationship has ended": {answered(403, `{"type":"https://docs.margo.org/specification/problem-types#wfm-client-relationship-retired"}`), 2, 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, func(s *site) { s.set.Poll.Interval = 7 * 24 * time.Hour })
				s.sync()
				s.wfm.fail("status", test.problem)
				s.publish(1, map[string]string{first: document(first, "1.0.0"), second: document(second, "1.0.0")})
				s.settled(first, second)
				synctest.Wait()
				sent := s.wfm.count("status")
				time.Sleep(5 * time.Hour)
				within(t, s.wfm.count("status")-sent, test.least, test.most, "reports within five hours")
				sent = s.wfm.count("status")
				for range 3 {
					s.sync()
					synctest.Wait()
				}
				expect.Equal(t, s.wfm.count("status")-sent, 3, "reports with three polls")
				s.wfm.fail("", nil)
				time.Sleep(2 * time.Hour) // the next poll is days later
				s.heard(first, "installed@1")
				s.heard(second, "installed@1")
			})
		})
	}
}

// What the WFM says is wrong with a report is wrong with it for good.
func TestERR01ReportsThatAreWrongAreNotSentAgain(t *testing.T) {
	var l log
	s := newSite(t, logged(&l))
	s.wfm.answer(first, answered(422, ""))
	s.publish(1, map[string]string{first: document(first, "1.0.0"), second: document(second, "1.0.0")})
	s.heard(second, "pending@1", "installing@1", "installed@1")
	s.settled(first, second)
	s.quiet()
	expect.Equal(t, s.wfm.count("status"), 6, "reports")
	expect.Equal(t, len(l.with("rejected a status report", first)), 3, "refusals in the log")
}

// The WFM knows nothing of a deployment: its reports wait for a change of it, or
// for long, and go when it is gone.
func TestReportsAboutUnknownDeployments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.wfm.answer(first, answered(http.StatusNotFound, ""))
		s.publish(1, map[string]string{first: document(first, "1.0.0"), second: document(second, "1.0.0")})
		s.heard(second, "pending@1", "installing@1", "installed@1")
		s.settled(first, second)
		synctest.Wait()
		sent := s.wfm.count("status")
		for range 5 {
			s.sync()
		}
		synctest.Wait()
		expect.Equal(t, s.wfm.count("status")-sent, 0, "reports without a change")
		time.Sleep(24 * time.Hour)
		within(t, s.wfm.count("status")-sent, 1, 12, "reports within a day without a change")

		s.publish(2, map[string]string{second: document(second, "1.0.0")})
		s.quiet() // first is gone
		s.heard(first)
	})
}

// Proxies that terminate TLS refuse a certificate that has expired with a page, and do not
// know what the WFM behind them would say of a report. None is lost, also not of a
// deployment that is gone; and a report that fails holds up no other deployment's.
func TestERR05AReportThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		page := answered(http.StatusBadRequest, "<html>400 The SSL certificate error</html>")
		page.Page = true
		s.wfm.answer(second, page) // its id sorts first
		s.publish(1, map[string]string{first: document(first, "1.0.0"), second: document(second, "1.0.0")})
		s.heard(first, "pending@1", "installing@1", "installed@1")
		s.settled(first, second)
		s.publish(2, map[string]string{first: document(first, "1.0.0")})
		s.settled(first)
		time.Sleep(24 * time.Hour)
		sent := s.wfm.count("status")
		time.Sleep(time.Hour)
		within(t, s.wfm.count("status")-sent, 1, 20, "reports within an hour")
		s.wfm.answer(second, nil)
		time.Sleep(10 * time.Minute)
		s.heard(second, "pending@1", "installing@1", "installed@1", "removing@2", "removed@2")
	})
}

// What the outbox has no room for is logged once, not with each report.
func TestDroppedReportsAreLoggedOnce(t *testing.T) {
	var l log
	s := newSite(t, logged(&l))
	s.sync()
	s.wfm.answer(first, answered(404, ""))
	s.publish(1, map[string]string{first: document(first, "1.0.0")})
	s.settled(first)
	for v := uint64(2); v < 12; v++ {
		s.publish(v, map[string]string{first: document(first, fmt.Sprintf("%d.0.0", v))})
		s.runtime.await(t, fmt.Sprintf("%s-main %d.0.0", first, v))
		s.settled(first)
	}
	s.eventually("16 reports wait", func() bool { return expect.Value(s.store.CountReports())(t) == 16 })
	s.eventually("it was logged", func() bool { return len(l.with("too many pending status reports")) > 0 })
	expect.Equal(t, len(l.with("too many pending status reports")), 1, "lines of log")
}

// A document with more components than this device takes, and a failure with
// much to say, are reported within bounds.
func TestReportsAreBounded(t *testing.T) {
	revisions := map[string]string{}
	for i := range 400 {
		revisions[fmt.Sprintf("component-%03d", i)] = "1.0.0"
	}
	most := map[string]string{}
	for i := range margo.MaxComponents {
		most[strings.Repeat("x", 190)+fmt.Sprint(i)] = "1.0.0"
	}
	s := newSite(t)
	s.runtime.fail("fetch 1.0.0", runtime.Code(strings.Repeat("x", 10)))
	s.publish(1, map[string]string{
		first:  documentOf(first, revisions),
		second: documentOf(second, most, "  parameters:", "    a: {value: 1, targets: [{pointer: X, components: [nonesuch]}]}"),
	})
	s.heard(first, "pending@1", "failed@1")
	s.heard(second, "pending@1", "failed@1")
	s.heardError(first, "INVALID_DOCUMENT")
	expect.Equal(t, len(s.wfm.last(second).Components), margo.MaxComponents, "components in the report")
}
