// Margolite is the Margo device agent and its command line.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := (&cli{out: os.Stdout, err: os.Stderr, env: os.Environ()}).main(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
