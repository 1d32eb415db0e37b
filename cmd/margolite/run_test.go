package main

import (
	"errors"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/store"
)

// The largest bundle and what is left of the one before have room on the device.
func TestTheStoreHasRoomForTheLargestBundle(t *testing.T) {
	cfg := config.Default()
	cfg.State.Dir = t.TempDir()
	s, err := openStore(cfg, 8)
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
