package main

import (
	"errors"
	"fmt"

	"github.com/margolite/margolite/runtime/embedded"
	"github.com/margolite/margolite/store"
)

// databaseCheck looks at a database of containerd as the store does at its own.
func databaseCheck() func(path string) (mended string, err error) {
	return func(path string) (string, error) {
		mended, err := store.MendBolt(path)
		switch {
		case errors.Is(err, store.ErrCorrupt):
			err = fmt.Errorf("%w: %w", embedded.ErrDamaged, err)
		case errors.Is(err, store.ErrLocked):
			err = fmt.Errorf("%w: %w", embedded.ErrLocked, err)
		}
		return mended, err
	}
}
