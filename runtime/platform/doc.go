// Package platform knows what programs and machines are made of, as names and
// image indexes write it: linux/arm/v7. It reads names as containerd does, and
// says what else a machine runs: which ARM runs what is for an older one.
//
// It is not github.com/containerd/platforms, which brings other systems and
// their versions, regular expressions and a log: 30 KB more.
package platform
