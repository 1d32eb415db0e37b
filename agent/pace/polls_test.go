package pace_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/test/expect"
)

// monday is a Monday at noon.
var monday = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// at is so long after monday, of a process that started then.
func at(d time.Duration) pace.Moment { return pace.Moment{Wall: monday.Add(d), Up: d} }

// seeded draws the same durations in each run.
func seeded(seed uint64) pace.Random {
	r := rand.New(rand.NewPCG(seed, 1))
	return func(n time.Duration) time.Duration { return time.Duration(r.Int64N(int64(n))) }
}

// most and least are as unlucky, or as lucky, as one can be.
func most(n time.Duration) time.Duration { return n - 1 }
func least(time.Duration) time.Duration  { return 0 }

func windows(t testing.TB, texts ...string) policy.Windows {
	t.Helper()
	var all policy.Windows
	for _, text := range texts {
		w, err := policy.ParseWindow(text, time.UTC)
		expect.Check(t, err)
		all = append(all, w)
	}
	return all
}

// answer is what a client of the WFM makes of an answer.
func answer(status int, retryAfter time.Duration, problem string) error {
	return fmt.Errorf("cannot poll: %w", &wfm.Error{
		Op: "get state manifest", Status: status, RetryAfter: retryAfter,
		Problem: margo.ParseProblem(margo.ProblemMediaType, status, []byte(problem)),
	})
}

// until follows the plan from m on and returns when it says to poll.
func until(t testing.TB, p *pace.Polls, m pace.Moment, hold func(pace.Moment) pace.Hold) (pace.Moment, pace.Plan) {
	t.Helper()
	for range 100_000 {
		h := pace.Hold{}
		if hold != nil {
			h = hold(m)
		}
		plan := p.Plan(m, h)
		if plan.Wait <= 0 {
			return m, plan
		}
		m.Wall, m.Up = m.Wall.Add(plan.Wait), m.Up+plan.Wait
	}
	t.Fatal("the plan never says to poll")
	return m, pace.Plan{}
}

func between(t *testing.T, what string, got, least, most time.Duration) {
	t.Helper()
	expect.True(t, got >= least && got <= most, "%s after %v, want %v to %v", what, got, least, most)
}

// The first poll comes soon, and at once where nothing was accepted yet; the
// second comes anywhere within the interval; then the rate is what it is set to.
func TestPOL04PollsKeepTheirRate(t *testing.T) {
	for _, interval := range []time.Duration{time.Second, time.Minute, time.Hour} {
		for seed := range uint64(100) {
			p := pace.NewPolls(at(0), pace.Rules{Interval: interval}, seeded(seed), true)
			m, _ := until(t, p, at(0), nil)
			between(t, "first poll", m.Up, 0, min(interval, 10*time.Second))
			p.Done(m, nil)
			next, plan := until(t, p, m, nil)
			between(t, "second poll", next.Up-m.Up, time.Second, interval)
			for range 10 {
				p.Done(next, nil)
				m = next
				next, plan = until(t, p, m, nil)
				between(t, "poll", next.Up-m.Up, interval-interval/10, interval)
			}
			expect.True(t, plan.Reason == pace.Interval && !plan.Closed, "the plan is %+v", plan)
		}
	}
	p := pace.NewPolls(at(0), pace.Rules{Interval: time.Hour}, most, false)
	expect.Equal(t, p.Plan(at(0), pace.Hold{}).Wait, 0, "without a manifest the first poll comes after")
	p = pace.NewPolls(at(0), pace.Rules{}, most, false)
	p.Done(at(0), nil)
	expect.True(t, p.Plan(at(0), pace.Hold{}).Wait > 0, "without an interval there is no time between two polls")
}

// What an answer means for the next poll: least and most are without and with
// all the bad luck there is.
func TestERR05AnswersDecideWhenToPollAgain(t *testing.T) {
	const second, minute, hour = time.Second, time.Minute, time.Hour
	problem := func(more string) string {
		return `{"type":"about:blank","title":"x"` + more + `}`
	}
	typed := func(name, title string) string {
		return `{"type":"https://docs.margo.org/specification/problem-types#` + name + `","title":"` + title + `"}`
	}
	for name, c := range map[string]struct {
		err         error
		failures    int // in a row
		reason      pace.Reason
		least, most time.Duration
	}{
		"ERR-05 no connection":                     {errors.New("connection refused"), 1, pace.Backoff, second, minute},
		"ERR-05 no connection again":               {errors.New("connection refused"), 2, pace.Backoff, second, 2 * minute},
		"ERR-05 no connection for long":            {errors.New("connection refused"), 1000, pace.Backoff, second, 5 * minute},
		"ERR-05 500":                               {answer(500, 0, ""), 1, pace.Backoff, second, minute},
		"ERR-05 502 of a machine in between":       {answer(502, 0, "<html>"), 3, pace.Backoff, second, 4 * minute},
		"ERR-05 503 that is not retryable":         {answer(503, 0, problem(`,"retryable":false`)), 3, pace.Interval, 54 * second, minute},
		"ERR-05 404 of a manifest":                 {answer(404, 0, ""), 9, pace.Interval, 54 * second, minute},
		"ERR-05 404 that is retryable":             {answer(404, 0, problem(`,"retryable":true`)), 2, pace.Backoff, second, 2 * minute},
		"ERR-05 400":                               {answer(400, 0, typed("invalid-request", "x")), 9, pace.Interval, 54 * second, minute},
		"ERR-06 none":                              {answer(500, 0, problem(`,"retryable":true,"backoffStrategy":"none"`)), 4, pace.Interval, 54 * second, minute},
		"ERR-06 fixed":                             {answer(500, 2*minute, problem(`,"retryable":true,"backoffStrategy":"fixed"`)), 9, pace.Backoff, 2 * minute, 132 * second},
		"ERR-06 fixed without a time":              {answer(500, 0, problem(`,"retryable":true,"backoffStrategy":"fixed"`)), 9, pace.Backoff, 54 * second, minute},
		"ERR-06 exponential, starting at the time": {answer(500, 2*minute, problem(`,"retryable":true,"backoffStrategy":"exponential"`)), 1, pace.Backoff, 2 * minute, 264 * second},
		"ERR-06 exponential, growing":              {answer(500, 2*minute, problem(`,"retryable":true,"backoffStrategy":"exponential"`)), 9, pace.Backoff, 2 * minute, 462 * second},
		"ERR-04 the later one is the interval":     {answer(503, 5*second, ""), 1, pace.Backoff, 54 * second, 72 * second},
		"ERR-04 the later one is what was asked":   {answer(503, hour, ""), 1, pace.Backoff, hour, hour + 10*minute},
		"ERR-04 also where there is no more to it": {answer(404, hour, ""), 1, pace.Interval, hour, hour + 5*minute},
		"ERR-01 the type comes before the status":  {answer(400, 0, typed("not-authorized", "x")), 1, pace.Refused, 54 * second, minute},
		"ERR-02 an unknown type leaves the status": {answer(403, 0, `{"type":"https://vendor.example/not-authorized"}`), 1, pace.Refused, 54 * second, minute},
		"not authorized":                           {answer(403, 0, typed("not-authorized", "x")), 9, pace.Refused, 150 * second, 5 * minute},
		"401":                                      {answer(401, 0, `{"error":"Invalid signature"}`), 1, pace.Refused, 54 * second, minute},
		"406":                                      {answer(406, 0, typed("server-cannot-generate-response", "x")), 2, pace.Refused, minute, 2 * minute},
		"retired":                                  {answer(403, 0, typed("wfm-client-relationship-retired", "x")), 1, pace.Retired, hour, 2 * hour},
		"retired, as in the example":               {answer(403, 0, typed("not-authorized", "Client Relationship Retired")), 50, pace.Retired, hour, 2 * hour},
	} {
		t.Run(name, func(t *testing.T) {
			longest := time.Duration(0)
			for luck, random := range map[string]pace.Random{"most": most, "least": least, "some": seeded(7)} {
				p := pace.NewPolls(at(0), pace.Rules{Interval: minute}, random, false)
				m := at(0)
				p.Done(m, nil)
				for range c.failures {
					m, _ = until(t, p, m, nil)
					p.Done(m, c.err)
				}
				plan := p.Plan(m, pace.Hold{})
				between(t, "with "+luck+" luck the next poll comes", plan.Wait, c.least, c.most)
				expect.Equal(t, plan.Reason, c.reason, "it waits for")
				longest = max(longest, plan.Wait)
			}
			expect.True(t, longest >= c.most-time.Second, "the bound is %v, want %v", longest, c.most)
		})
	}
	t.Run("a success ends it", func(t *testing.T) {
		p := pace.NewPolls(at(0), pace.Rules{Interval: minute}, most, false)
		for range 9 {
			p.Done(at(0), errors.New("connection refused"))
		}
		p.Done(at(0), nil)
		p.Done(at(0), errors.New("connection refused"))
		between(t, "the next poll comes", p.Plan(at(0), pace.Hold{}).Wait, second, minute)
	})
	t.Run("where the interval is long the first try is not", func(t *testing.T) {
		p := pace.NewPolls(at(0), pace.Rules{Interval: 24 * hour}, most, false)
		p.Done(at(0), errors.New("connection refused"))
		between(t, "the next poll comes", p.Plan(at(0), pace.Hold{}).Wait, second, minute)
		for range 100 {
			p.Done(at(0), errors.New("connection refused"))
		}
		between(t, "the next poll comes", p.Plan(at(0), pace.Hold{}).Wait, 23*hour, 24*hour)
	})
}

// Whoever changed the configuration sees soon what comes of it; a network that
// is back is used soon. Neither helps against the wish of the WFM, and the
// network not against the end of the relationship.
func TestWakingPollsSoon(t *testing.T) {
	retired := answer(403, 0, `{"type":"https://docs.margo.org/specification/problem-types#wfm-client-relationship-retired"}`)
	rules := pace.Rules{Interval: time.Minute}
	for name, c := range map[string]struct {
		err  error
		wake func(*pace.Polls)
		hold pace.Hold
		most time.Duration
	}{
		"woken after failures":              {errors.New("no route to host"), func(p *pace.Polls) { p.Wake(at(0)) }, pace.Hold{}, 10 * time.Second},
		"configured after failures":         {errors.New("no route to host"), func(p *pace.Polls) { p.Configure(at(0), rules) }, pace.Hold{}, 10 * time.Second},
		"configured after a refusal":        {answer(403, 0, ""), func(p *pace.Polls) { p.Configure(at(0), rules) }, pace.Hold{}, 10 * time.Second},
		"configured after the end":          {retired, func(p *pace.Polls) { p.Configure(at(0), rules) }, pace.Hold{}, 10 * time.Second},
		"configured with a longer rate":     {nil, func(p *pace.Polls) { p.Configure(at(0), pace.Rules{Interval: time.Hour}) }, pace.Hold{}, 10 * time.Second},
		"woken after the end":               {retired, func(p *pace.Polls) { p.Wake(at(0)) }, pace.Hold{}, 2 * time.Hour},
		"ERR-04 woken during silence":       {answer(503, time.Hour, ""), func(p *pace.Polls) { p.Wake(at(0)) }, pace.Hold{Silence: time.Hour}, time.Hour + time.Minute},
		"POL-01 configured during downtime": {nil, func(p *pace.Polls) { p.Configure(at(0), rules) }, pace.Hold{Downtime: time.Hour}, time.Hour + time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			p := pace.NewPolls(at(0), rules, most, false)
			for range 9 {
				p.Done(at(0), c.err)
			}
			c.wake(p)
			m, _ := until(t, p, at(0), func(m pace.Moment) pace.Hold {
				return pace.Hold{Silence: max(c.hold.Silence-m.Up, 0), Downtime: max(c.hold.Downtime-m.Up, 0)}
			})
			least := max(c.hold.Left(), c.most-c.most/2-time.Minute, 0)
			between(t, "poll", m.Up, least, c.most)
		})
	}
}

// The desired state is asked for in windows only. What the device has to tell
// may go out, at the rate of polls.
func TestPOL03PollsKeepToTheirWindows(t *testing.T) {
	rules := pace.Rules{Interval: time.Minute, Windows: windows(t, "Mon 18:00-18:30", "Tue 06:00-06:01")}
	p := pace.NewPolls(at(0), rules, seeded(1), true)
	polls, told, m := 0, 0, at(0)
	for m.Up < 7*24*time.Hour {
		var plan pace.Plan
		m, plan = until(t, p, m, nil)
		open := rules.Windows.Contains(m.Wall)
		if plan.Closed == open {
			t.Fatalf("at %v the plan is %+v", m.Wall, plan)
		}
		if open {
			polls++
			p.Done(m, nil)
			continue
		}
		if next, _ := rules.Windows.Next(m.Wall); !plan.Opens.Equal(next) || !plan.Next.Equal(next) || plan.Reason != pace.Closed {
			t.Fatalf("at %v the plan is %+v, want it to wait for %v", m.Wall, plan, next)
		}
		told++
		p.Skip(m)
	}
	expect.True(t, polls >= 31 && polls <= 36, "%d polls in 31 minutes of open windows", polls)
	expect.True(t, told >= 7*24*60-60, "%d chances to tell something in a week", told)
}

// However short a window is beside the interval, it is used.
func TestPOL03ShortWindowsAreNotMissed(t *testing.T) {
	rules := pace.Rules{Interval: 6 * time.Hour, Windows: windows(t, "22:00-22:02")}
	for seed := range uint64(4) {
		p := pace.NewPolls(at(0), rules, seeded(seed), true)
		days, m := map[int]bool{}, at(0)
		for m.Up < 7*24*time.Hour {
			var plan pace.Plan
			m, plan = until(t, p, m, nil)
			switch {
			case !plan.Closed && seed%2 == 0:
				p.Done(m, errors.New("connection refused")) // also where it did not help
				days[m.Wall.YearDay()] = true
			case !plan.Closed:
				p.Done(m, nil)
				days[m.Wall.YearDay()] = true
			default:
				p.Skip(m)
			}
		}
		expect.True(t, len(days) == 7, "polled on %d of 7 days", len(days))
	}
}

// A clock that is corrected changes neither the interval nor, for longer than a
// minute, what windows and downtime mean.
func TestClockJumpsDoNotSilence(t *testing.T) {
	for name, jump := range map[string]time.Duration{"back": -20 * 365 * 24 * time.Hour, "ahead": 20 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			p := pace.NewPolls(at(0), pace.Rules{Interval: time.Hour}, most, false)
			p.Done(at(0), nil)
			p.Done(at(0), nil)
			m := at(30 * time.Minute)
			m.Wall = m.Wall.Add(jump)
			between(t, "poll", p.Plan(m, pace.Hold{}).Wait, 24*time.Minute, 30*time.Minute)

			// The clock is wrong and shows an hour far from the next window, until
			// it is corrected.
			p = pace.NewPolls(at(0), pace.Rules{Interval: time.Minute, Windows: windows(t, "Mon 12:00-13:00")}, least, false)
			m = pace.Moment{Wall: monday.Add(jump + 36*time.Hour)}
			for range 10 {
				plan := p.Plan(m, pace.Hold{})
				expect.Require(t, plan.Closed && plan.Wait <= time.Minute, "the plan is %+v", plan)
				if plan.Wait == 0 {
					p.Skip(m)
				}
				m.Wall, m.Up = m.Wall.Add(plan.Wait), m.Up+plan.Wait
			}
			m.Wall = monday
			if plan := p.Plan(m, pace.Hold{}); plan.Closed || plan.Wait > time.Minute {
				t.Errorf("after the correction the plan is %+v", plan)
			}
		})
	}
}

// Whatever comes, the plan makes progress and respects what holds it back.
func FuzzPolls(f *testing.F) {
	f.Add(uint64(1), []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add(uint64(2), []byte{4, 4, 4, 7, 1, 9, 3})
	f.Fuzz(func(t *testing.T, seed uint64, steps []byte) {
		errs := []error{
			nil, errors.New("connection refused"), answer(403, 0, ""), answer(http.StatusServiceUnavailable, time.Hour, ""),
			answer(403, 0, `{"type":"https://docs.margo.org/specification/problem-types#wfm-client-relationship-retired"}`), answer(500, 0, ""),
		}
		rules := pace.Rules{Interval: time.Duration(seed%90_000) * time.Second, Windows: windows(t, "Mon-Fri 08:00-18:00")}
		if seed%2 == 0 {
			rules.Windows = nil
		}
		p, m := pace.NewPolls(at(0), rules, seeded(seed), seed%3 == 0), at(0)
		for _, s := range steps[:min(len(steps), 64)] {
			held := m.Up + time.Duration(s)*time.Minute
			switch s % 5 {
			case 0:
				p.Wake(m)
			case 1:
				p.Configure(m, rules)
			case 2:
				m.Wall = m.Wall.Add(time.Duration(int8(s)) * time.Hour)
			}
			var plan pace.Plan
			m, plan = until(t, p, m, func(m pace.Moment) pace.Hold { return pace.Hold{Silence: max(held-m.Up, 0)} })
			if m.Up < held || !plan.Closed && len(rules.Windows) > 0 && !rules.Windows.Contains(m.Wall) {
				t.Fatalf("at %v, held until %v, the plan is %+v", m, held, plan)
			}
			err := errs[int(s)%len(errs)]
			if p.Done(m, err); p.Plan(m, pace.Hold{}).Wait < 9*time.Second/10 && len(rules.Windows) == 0 {
				t.Fatalf("after %v the next poll comes after %v", err, p.Plan(m, pace.Hold{}).Wait)
			}
		}
	})
}
