package identity_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/expect"
)

func TestID23NextRefreshFollowsTheHint(t *testing.T) {
	day := 24 * time.Hour
	for name, test := range map[string]struct{ hint, configured, want time.Duration }{
		"ID-23 the hint":                         {2 * time.Hour, day, 2 * time.Hour},
		"ID-23 the hint, though it is longer":    {3 * day, day, 3 * day},
		"ID-23 the configured interval":          {0, 6 * time.Hour, 6 * time.Hour},
		"neither":                                {0, 0, day},
		"a hint that would load the service":     {time.Second, day, 5 * time.Minute},
		"a hint that would miss a rotation":      {365 * day, day, 7 * day},
		"a configured interval that is too long": {0, 365 * day, 7 * day},
		"a configured interval below zero":       {0, -time.Hour, day},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, identity.NextRefresh(test.hint, test.configured), test.want, "NextRefresh(%s, %s)", test.hint, test.configured)
		})
	}
}

func TestID28NextRetryFollowsTheProblem(t *testing.T) {
	answer := func(status int, after time.Duration, body string) error {
		return &wfm.Error{Status: status, RetryAfter: after, Problem: margo.ParseProblem(margo.ProblemMediaType, status, []byte(body))}
	}
	unreachable := errors.New("connection refused")
	const missing = `{"type":"https://docs.margo.org/specification/problem-types#spiffe-bundle-not-found","retryable":true,"backoffStrategy":"exponential"}`
	for name, test := range map[string]struct {
		failures      int
		err           error
		wait, atLeast time.Duration
	}{
		"the first":                              {1, unreachable, 30 * time.Second, 0},
		"the third":                              {3, unreachable, 2 * time.Minute, 0},
		"for long":                               {1000, unreachable, time.Hour, 0},
		"ID-28 no bundle there":                  {1, answer(404, 30*time.Second, missing), 30 * time.Second, 30 * time.Second},
		"ID-28 no bundle there, again":           {4, answer(404, 30*time.Second, missing), 4 * time.Minute, 30 * time.Second},
		"ID-28 no bundle there, and no more":     {1, answer(404, 0, missing), 30 * time.Second, 0},
		"ERR-04 silence":                         {1, answer(503, 3*time.Hour, ""), 3 * time.Hour, 3 * time.Hour},
		"ERR-05 not to be repeated":              {1, answer(403, 0, `{"retryable":false}`), time.Hour, 0},
		"ERR-05 an answer without a word":        {1, answer(404, 0, ""), time.Hour, 0},
		"ERR-05 a server that fails":             {2, answer(http.StatusBadGateway, 0, ""), time.Minute, 0},
		"ERR-06 at a fixed distance":             {9, answer(503, 45*time.Second, `{"retryable":true,"backoffStrategy":"fixed"}`), 45 * time.Second, 45 * time.Second},
		"ERR-06 at a fixed distance not told":    {2, answer(503, 0, `{"retryable":true,"backoffStrategy":"fixed"}`), time.Minute, 0},
		"ERR-06 growing from what was asked for": {2, answer(429, 2*time.Minute, ""), 4 * time.Minute, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			wait, atLeast := identity.NextRetry(test.failures, test.err)
			expect.Equal(t, wait, test.wait, "wait")
			expect.Equal(t, atLeast, test.atLeast, "at least")
		})
	}
}
