// Package test is empty. Tests of compose-go import it, which nobody runs here
// and "go mod tidy" wants to find.
package test
