// Package ociimage makes container images and Margo Compose components in
// memory and pushes them to a registry, for tests and for the development WFM.
//
// Nothing here needs a container engine, a network or a base image: an image is
// a list of layers, a layer is a list of files, and what comes out depends on
// nothing else. The same input gives the same digests on every machine, so a
// test may compare them.
package ociimage
