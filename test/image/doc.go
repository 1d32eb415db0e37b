// Package image runs the agent as a container of its image (packaging/image), under each engine that this machine has:
// Docker, Podman and containerd.
//
// `make test-image` installs the engines first.
package image
