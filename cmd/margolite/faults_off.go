//go:build !faults

package main

// killAfterCommit and killAtStep inject faults in builds with the tag faults;
// in all others there are none.
func killAfterCommit() func(string) { return nil }

func killAtStep() func(string) { return nil }
