//go:build slim

package main

// databaseCheck is of no use where no containerd is inside.
func databaseCheck() func(path string) (mended string, err error) { return nil }
