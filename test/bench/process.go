package main

import "github.com/margolite/margolite/test/plant"

// memory is what processes hold, in bytes.
type memory struct {
	RSS       int64 // resident: a page counts in every process that maps it
	PSS       int64 // proportional: a page is divided among them
	Anonymous int64 // resident and of no file: what cannot be dropped
}

func (m memory) plus(other memory) memory {
	return memory{m.RSS + other.RSS, m.PSS + other.PSS, m.Anonymous + other.Anonymous}
}

// memoryOf asks the kernel what a process holds.
func memoryOf(pid int) (memory, error) {
	f, err := plant.Counts(pid, "smaps_rollup")
	return memory{RSS: f["Rss"], PSS: f["Pss"], Anonymous: f["Anonymous"]}, err
}
