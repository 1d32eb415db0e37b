// Package field tries the main job against a WFM that others have written, built and
// unmodified: the caller names it, see the Makefile's target test-field. It is no part of
// the usual tests, since nothing of such a WFM belongs to this project.
package field
