//go:build slim

package build

// Flavour says whether containerd is carried inside: slim, it is not.
const Flavour = "slim"
