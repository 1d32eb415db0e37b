// Margolite is the Margo device agent and its command line.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/margolite/margolite/runtime/log"
)

// stopGrace bounds a stop: the agent may be killed at any moment, and workloads do not need it.
const stopGrace = 15 * time.Second

func main() {
	log.Serve(os.Args[1:])
	c := &cli{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Environ()}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // another signal ends the process at once
	c.endWith(ctx)
	code := c.main(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
