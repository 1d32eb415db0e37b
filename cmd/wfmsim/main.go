// Wfmsim is a Workload Fleet Manager for development with a built-in OCI registry, to try out a
// device agent on one machine from the first deployment to the removal. It implements the
// management interface of Margo 1.0.0-rc.3, rc.2 and rc.1. See "wfmsim help".
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/wfmsim/admin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, out, talk io.Writer) int {
	p := command.Program{
		Name:  "wfmsim",
		About: "wfmsim is a Workload Fleet Manager for development, with an OCI registry.\n\nUsage: wfmsim COMMAND [FLAGS] [ARGUMENTS]",
		Notes: `A first trial, each of the first two commands in a terminal of its own:
  wfmsim serve --dir /tmp/wfm
  margolite run --config /tmp/wfm/margolite.yaml
  CGO_ENABLED=0 go build -o demoapp ./test/demoapp
  wfmsim push-image --name margolite/demoapp --binary demoapp
  wfmsim publish-compose --name demoapp --package test/demoapp/package
  wfmsim statuses --follow

"wfmsim help COMMAND" explains a command.
`,
		Out: out, Err: talk, Defaults: true,
		Commands: []command.Command{
			serveCommand(out),
			publishCommand(out), publishComposeCommand(out), pushImageCommand(out), removeCommand(out),
			listCommand(out), statusesCommand(out), capabilitiesCommand(out), requestsCommand(out),
			faultCommand(out), clearCommand(out), versionCommand(out),
			clientCommand(out, "restart", "restart the client's manifest versions at 1"),
			pendingCommand(out), approveCommand(out),
			clientCommand(out, "forget", "forget a client, before rc.3: it must be onboarded again"),
		},
		Hint: func(err error) string {
			if errors.Is(err, admin.ErrNotRunning) {
				return `start one with "wfmsim serve --dir DIR", or name another with --admin URL`
			}
			return ""
		},
	}
	return p.Main(ctx, args)
}
