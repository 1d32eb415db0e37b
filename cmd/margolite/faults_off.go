//go:build !faults

package main

import "time"

// killAfterCommit, killAtStep and systemClock inject faults only in builds with the tag faults.
func killAfterCommit() func(string) { return nil }

func killAtStep() func(string) { return nil }

func systemClock() func() time.Time { return time.Now }
