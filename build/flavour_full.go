//go:build !slim

package build

// Flavour says whether containerd is carried inside: full.
const Flavour = "full"
