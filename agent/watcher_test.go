package agent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/test/expect"
)

// hardware is what a site runs on. The zero value has no peripherals, and tells
// when that changes.
type hardware struct {
	guarded
	peripherals []capability.Peripheral
	changed     func() // of the agent that watches
	mute        bool   // it tells nothing
	looked      int
}

func (m *hardware) found() []capability.Peripheral {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looked++
	return slices.Clone(m.peripherals)
}

func (m *hardware) watch(ctx context.Context, changed func()) error {
	if m.mute {
		return errors.New("no socket of the kernel")
	}
	m.set(func() { m.changed = changed })
	changed()
	<-ctx.Done()
	return nil
}

// plug is as if the kernel told of something, after which there are these.
func (m *hardware) plug(peripherals ...capability.Peripheral) {
	changed := read(&m.guarded, func() func() {
		m.peripherals = peripherals
		return m.changed
	})
	if changed != nil {
		changed()
	}
}

func webcam(name string) capability.Peripheral {
	return capability.Peripheral{Kind: capability.Camera, Name: name, Vendor: "Logitech", Model: "BRIO"}
}

// unhurried is a site that polls every few hours, and has begun.
func unhurried(t *testing.T, test func(t *testing.T, s *site)) {
	simulated(t, func(s *site) { s.set.Poll.Interval = 6 * time.Hour }, func(t *testing.T, s *site) {
		s.installed()
		s.quiet()
		test(t, s)
	})
}

// CAP-03: a camera is reported soon, though the next poll is hours away, and once, however
// many parts it has that come one after the other; so is that it is gone. Events of what
// does not change the report lead to nothing: no request, no write.
func TestCAP03WhatIsPluggedInIsReportedSoon(t *testing.T) {
	unhurried(t, func(t *testing.T, s *site) {
		camera := []capability.Peripheral{webcam("video0"), webcam("video1"), webcam("video2")}
		for i, parts := range [][][]capability.Peripheral{{camera[:1], camera[:2], camera}, {nil}} {
			for _, part := range parts {
				s.machine.plug(part...)
				time.Sleep(time.Second)
			}
			calls, times := s.during(30 * time.Second)
			expect.Equal(t, count(calls, "capabilities"), 1, "reports of change %d in %v at %v", i, calls, times)
			calls, _ = s.during(2 * time.Minute)
			expect.Equal(t, len(calls), 0, "calls after change %d", i)
		}
		writes := s.store.Writes()
		for range 100 {
			s.machine.plug()
			time.Sleep(time.Second)
		}
		calls, _ := s.during(time.Minute)
		expect.Equal(t, len(calls), 0, "calls for what is as it was")
		s.wroteNothing(writes)
	})
}

// A loose contact keeps neither the device nor the WFM busy.
func TestALooseContactIsReportedNowAndThen(t *testing.T) {
	unhurried(t, func(t *testing.T, s *site) {
		looks := func() int { return read(&s.machine.guarded, func() int { return s.machine.looked }) }
		looked, before := looks(), s.wfm.asked()
		began := time.Now()
		for time.Since(began) < time.Hour {
			s.machine.plug(webcam("video0"))
			time.Sleep(7 * time.Second)
			s.machine.plug()
			time.Sleep(5 * time.Second)
		}
		within(t, s.wfm.asked()-before, 1, 2*60, "requests within an hour")
		within(t, looks()-looked, 0, 3*60, "looks at the machine within an hour")
	})
}

// Where nothing tells of changes they are found with the next poll.
func TestCAP03WithoutEventsChangesAreFoundByPolls(t *testing.T) {
	simulated(t, func(s *site) { s.machine.mute = true }, func(t *testing.T, s *site) {
		s.installed()
		s.machine.plug(webcam("video0"))
		calls, _ := s.during(2 * time.Minute)
		expect.Equal(t, count(calls, "capabilities"), 1, "reports in %v", calls)
	})
}

// What is plugged in does not hurry a device whose WFM is out of reach: it goes
// on as it did, and the report comes when it can.
func TestCAP03WhatIsPluggedInWaitsForTheWFM(t *testing.T) {
	unhurried(t, func(t *testing.T, s *site) {
		s.wfm.failAll(errUnreachable)
		s.refuses()
		calm, _ := s.during(time.Hour)
		for range 30 {
			s.machine.plug(webcam("video0"))
			time.Sleep(time.Minute)
			s.machine.plug()
			time.Sleep(time.Minute)
		}
		s.machine.plug(webcam("video1"))
		s.wfm.failAll(nil)
		calls, _ := s.during(7 * time.Hour)
		expect.Equal(t, count(calls, "capabilities"), 1, "reports in %v, and in %v in an hour before", calls, calm)
	})
}

// A deployment that the device could not host is tried again when it can.
func TestAD11WhatIsPluggedInHelpsADeployment(t *testing.T) {
	unhurried(t, func(t *testing.T, s *site) {
		const profile, needs = "  deploymentProfile:\n", "    deviceConstraints: {eligibilityRules: [{propertySelector: {matchExpressions: " +
			"[{key: /peripherals, operator: ContainsAny, itemSelector: {matchExpressions: [{key: /type, operator: In, values: [camera]}]}}]}}]}\n"
		s.publish(2, map[string]string{first: strings.Replace(document(first, "2.0.0"), profile, profile+needs, 1)})
		s.heard(first, "pending@1", "installing@1", "installed@1", "pending@1", "failed@2")
		time.Sleep(3 * time.Hour)
		s.machine.plug(webcam("video0"))
		s.during(30 * time.Second)
		s.untouched("2.0.0")
	})
}
