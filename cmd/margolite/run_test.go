package main

import (
	"errors"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/store"
)

// A bundle as large as the configuration allows has room on the device.
func TestTheStoreHasRoomForTheLargestBundle(t *testing.T) {
	cfg := config.Default()
	cfg.State.Dir = t.TempDir()
	cfg.WFM.Limits.Bundle = 8
	s, err := openStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, want := range []error{nil, nil, store.ErrNoRoom} {
		w, err := s.Incoming().Append(digest.FromString(string(rune('a' + i))))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 8)); !errors.Is(err, want) {
			t.Errorf("bundle %d: %v, want %v", i, err, want)
		}
		w.Close()
	}
}
