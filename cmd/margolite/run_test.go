package main

import (
	"errors"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/store"
)

// Where the revision wants to know what a pending deployment waits for, it is told, and
// where it has no field for it, it is a setting.
func TestST11TheReasonIsToldWhereTheRevisionWantsIt(t *testing.T) {
	for reason, change := range map[bool]func(*config.Config){
		false: func(*config.Config) {},
		true:  func(cfg *config.Config) { cfg.WFM.Git.Report.Branch = "reports" },
	} {
		cfg := config.Default()
		change(cfg)
		if set := settingsOf(cfg, agent.Device{}, nil); set.Reports.Reasons != reason || set.Reports.Interval != 24*time.Hour {
			t.Errorf("reports are %+v, want reasons: %t", set.Reports, reason)
		}
	}
}

// The largest bundle has room on the device, and nothing larger.
func TestTheStoreHasRoomForTheLargestBundle(t *testing.T) {
	cfg := config.Default()
	cfg.State.Dir = t.TempDir()
	s, err := openStore(t.Context(), cfg, 8)
	check(t, err)
	defer s.Close()
	w, err := s.Incoming().Append(digest.FromString("a bundle"))
	check(t, err)
	defer w.Close()
	if _, err := w.Write(make([]byte, 8)); err != nil {
		t.Error(err)
	}
	if _, err := w.Write([]byte{0}); !errors.Is(err, store.ErrNoRoom) {
		t.Errorf("one byte more: %v", err)
	}
}
