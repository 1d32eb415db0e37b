package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
)

// busy holds the file locked, as a program does that must not be updated now.
// The kernel lets go of it when the program ends, however that is.
func busy(ctx context.Context, file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("cannot open lock file: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return errors.Join(fmt.Errorf("cannot lock %s: %w", file, err), f.Close())
	}
	slog.Info("busy", "lock", file)
	<-ctx.Done()
	return f.Close()
}
