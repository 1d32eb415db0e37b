package container

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/test/expect"
)

// However many sessions callers have, and however many health checks hang in two projects, those of others find places.
func TestCommandsLeaveRoomForThoseOfOthers(t *testing.T) {
	type command struct {
		id, project string
		own         bool
	}
	for name, test := range map[string]struct {
		busy     command // in as many containers of its project as can be
		projects int
		admitted int // of those that are busy
		well     []command
	}{
		"sessions in one container": {
			command{"busy", "shop", false},
			1, maxContainerExecs,
			[]command{{"busy", "shop", true}, {"well", "shop", false}, {"well", "other", true}, {"well", "other", false}},
		},
		"health checks that hang in two projects": {command{"", "", true}, 2, 2 * maxProjectExecs, []command{{"well", "other", true}, {"well", "other", false}}},
		"sessions in all projects":                {command{"", "", false}, 3, maxCallerExecs, []command{{"well", "other", true}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlaces()
				take := func(c command) bool {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					_, err := p.run.Acquire(ctx, placeOf(c.id, c.project, c.own), nil, nil)
					return err == nil
				}
				admitted := 0
				for n := range test.projects * (maxProjectExecs + 1) {
					c := test.busy
					if c.id == "" {
						c.project = strconv.Itoa(n % test.projects)
						c.id = strconv.Itoa(n % (2 * test.projects)) // two containers of each
					}
					if take(c) {
						admitted++
					}
				}
				expect.Equal(t, admitted, test.admitted, "commands run")
				for _, c := range test.well {
					expect.Equal(t, take(c), true, "there is a place for %+v", c)
				}
			})
		})
	}
}

// A start that blocks leaves room for those of others, and none for more of its own container.
func TestAStartThatBlocksLeavesRoomForOthers(t *testing.T) {
	start := newPlaces().start
	try := func(id, project string) *limit.Slot { return start.Try(placeOf(id, project, true), nil) }
	blocking := []*limit.Slot{try("hangs", "shop"), try("hangs", "shop")}
	for range maxStarts - len(blocking) {
		expect.Equal(t, try("well", "other") != nil, true, "as many commands start as may")
	}
	expect.Equal(t, try("late", "third") == nil, true, "no more commands start than may")
	for _, s := range blocking {
		s.Become(blocked + s.Kind)
		expect.Equal(t, try("late", "third") != nil, true, "another one starts beside one that blocks")
	}
	expect.Equal(t, try("hangs", "shop") == nil, true, "no third one starts in a container in which two block")
}
