package main

import (
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
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
		reports := config.Default().Reports
		reports.Reasons = reason
		expect.Equal(t, settingsOf(cfg, agent.Device{}, nil).Reports, reports, "reports")
	}
}

// The largest bundle has room on the device, and nothing larger.
func TestTheStoreHasRoomForTheLargestBundle(t *testing.T) {
	cfg := config.Default()
	cfg.State.Dir = t.TempDir()
	s := expect.Value(openStore(t.Context(), cfg, 8))(t)
	defer s.Close()
	w := expect.Value(s.Incoming().Append(digest.FromString("a bundle")))(t)
	defer w.Close()
	expect.OK(t, expect.ErrorOf(w.Write(make([]byte, 8))))
	expect.Error(t, expect.ErrorOf(w.Write([]byte{0})), store.ErrNoRoom, "one byte more")
}
