package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// measuring is a WFM that looks at the heap while it takes reports.
type measuring struct {
	WFM
	taken int
	peak  uint64
}

func (m *measuring) PostStatus(context.Context, string, []byte) error {
	if m.taken++; m.taken%128 == 0 {
		m.peak = max(m.peak, heap())
	}
	return nil
}

// heap is how much is in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what was pooled goes with the second one
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// reporterOf makes a reporter that may always call the WFM.
func reporterOf(w WFM, s *store.Store) *reporter {
	logger := slog.New(slog.DiscardHandler)
	begun := time.Now()
	nobodyAsks := pace.NewSilence(pace.SilenceOptions{
		Now:    func() pace.Moment { return pace.Moment{Wall: time.Now(), Up: time.Since(begun)} },
		Random: rand.N[time.Duration], Logger: logger,
	})
	return newReporter(&base{wfm: w, store: s, logger: logger, now: time.Now, hub: newHub(time.Now)}, nobodyAsks, &loop{})
}

// refusing is a WFM that knows no deployment.
type refusing struct{ WFM }

func (refusing) PostStatus(context.Context, string, []byte) error {
	return &wfm.Error{Op: "report status", Status: http.StatusNotFound}
}

// A report that the medium has spoiled is an error also where the WFM refuses
// another one in the same round.
func TestACorruptReportIsAnErrorBesideARefusedOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "margolite.db")
	s := expect.Value(store.Open(path, store.Options{}))(t)
	defer s.Close()
	const spoiled, fine = "ad9b614e-8912-45f4-a523-000000000001", "ad9b614e-8912-45f4-a523-000000000002"
	check(t, s.Commit("test", store.Change{Deployments: []store.Deployment{{ID: fine}}, Reports: []store.Report{
		{Deployment: spoiled, Version: 1, Body: []byte("{}")},
		{Deployment: fine, Version: 1, Body: []byte("{}")},
	}}))

	f := expect.Value(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer f.Close()
	pages := expect.Value(io.ReadAll(f))(t)
	// The key of a report ends with its weight, the version and the deployment.
	at := bytes.Index(pages, append([]byte{0, 0, 0, 0, 0, 0, 0, 1}, spoiled...))
	expect.Require(t, at > 0, "the report is not in the file")
	check(t, expect.ErrorOf(f.WriteAt([]byte{0xff}, int64(at-1))))

	_, err := reporterOf(refusing{}, s).round(t.Context())
	var refused *wfm.Error
	expect.Error(t, err, store.ErrCorrupt, "corrupt report")
	expect.Equal(t, errors.As(err, &refused), true, "the refusal is in %v", err)
}

// A full outbox is delivered in few transactions, and without being held in memory.
func TestAFullOutboxIsNotHeldInMemory(t *testing.T) {
	s := expect.Value(store.Open(filepath.Join(t.TempDir(), "margolite.db"), store.Options{}))(t)
	defer s.Close()
	const reports = 2048
	w := &measuring{}
	r := reporterOf(w, s)
	var c store.Change
	for i := range reports {
		c.Reports = append(c.Reports, store.Report{Deployment: fmt.Sprintf("ad9b614e-8912-45f4-a523-%012d", i), Body: make([]byte, 1000)})
	}
	check(t, s.Commit("test", c))
	c = store.Change{} // and is not held here
	before, writes := heap(), s.Writes()
	f := expect.Value(r.round(t.Context()))(t)
	expect.Equal(t, f, taken, "fate of the reports")
	const most = 256 << 10
	if held := int64(w.peak) - int64(before); held > most {
		t.Errorf("%d bytes were held, want at most %d", held, most)
	} else {
		t.Logf("%d bytes were held, %d reports in %d transactions", held, w.taken, s.Writes()-writes)
	}
	expect.Equal(t, w.taken, reports, "reports delivered")
	expect.Equal(t, s.Writes()-writes <= reports/reportsAtOnce, true, "%d transactions", s.Writes()-writes)
}

// What becomes of a report is decided by the type of the problem, whatever the status, and
// where that says nothing by the status; a page of a proxy knows nothing of reports.
func TestERR01ERR02TheAnswerDecidesWhatBecomesOfAReport(t *testing.T) {
	const margoType = `{"type":"https://docs.margo.org/specification/problem-types#`
	answer := func(status int, body string) *wfm.Error {
		return &wfm.Error{Op: "report status", Status: status, Problem: margo.ParseProblem(margo.ProblemMediaType, status, []byte(body))}
	}
	page := func(status int) *wfm.Error {
		return &wfm.Error{Op: "report status", Status: status, Page: true, Problem: margo.ParseProblem("text/html", status, []byte("<html>"))}
	}
	for want, problems := range map[fate][]error{
		unheard: {errors.New("connection refused"), answer(408, ""), answer(429, ""), answer(502, ""), answer(503, "")},
		refused: {
			answer(401, ""), answer(403, ""), answer(405, ""), answer(407, ""), answer(501, ""), answer(307, ""),
			answer(400, margoType+`not-authorized"}`), answer(400, margoType+`invalid-digest-header"}`),
		},
		retired: {answer(403, margoType+`wfm-client-relationship-retired"}`)},
		hopeless: {
			answer(409, margoType+`semantic-error"}`), answer(500, margoType+`invalid-request","retryable":true}`),
			answer(422, `{"type":"https://vendor.example/wrong"}`), answer(400, `{"error":"wrong"}`), answer(413, ""),
		},
		parked: {answer(404, ""), answer(409, ""), answer(410, ""), answer(500, `{"retryable":false}`)},
		later:  {answer(500, ""), page(400), page(404), page(410), page(422)},
	} {
		for _, problem := range problems {
			expect.Equal(t, fateOf(problem, false), want, "fate by %v", problem)
			gone := want
			if want == parked { // nothing will change
				gone = hopeless
			}
			expect.Equal(t, fateOf(problem, true), gone, "fate of what is gone by %v", problem)
		}
	}
}
