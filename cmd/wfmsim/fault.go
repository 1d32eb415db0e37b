package main

import (
	"context"
	"encoding/json"
	"io"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/wfmsim/admin"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

func faultCommand(out io.Writer) command.Command {
	return command.Command{
		Name: "fault", Args: "[KIND]", Text: "inject a fault; without KIND, list the faults",
		Prepare: func(flags *command.Flags) command.Action {
			flags.More = `
Kinds:
  answer        another answer: --status, --retry-after (none: leave it out),
                --what TYPE of the problem, --value its title
  html          the page of a captive portal, with --status or 200
  cut           the connection ends after --bytes of the body
  reset         the same, by a TCP reset
  stall         nothing comes after --bytes of the body
  endless       spaces follow the body for ever, or up to --bytes in all
  bomb          a gzip body that expands to --bytes (default 1 GiB)
  corrupt       one bit differs, in the byte at offset --bytes
  slow          --bytes per second
  drip          --bytes at a time, each after --wait
  delay         the answer comes after --wait
  clock         the Date header is off by --wait, which may be negative

Endpoints of the WFM: manifest, document, bundle, status, capabilities, before
rc.3 also root and onboarding.
Endpoints of the registry: ping, manifest, blob, upload.
Endpoints of the MIS: discovery, bundle.
`
			flags.Takes(0, 1, "KIND")
			client, r := askFlags(flags), admin.Request{}
			serverFlag(flags, &r)
			f := &r.Fault
			flags.StringVar(&f.Endpoint, "endpoint", "", "`NAME` of the endpoint (default: all)")
			flags.StringVar(&f.Match, "match", "", "affect requests whose path contains `TEXT`")
			flags.IntVar(&f.Skip, "skip", 0, "let `N` requests pass first")
			flags.IntVar(&f.Times, "times", 0, "affect `N` requests (default: until cleared)")
			flags.IntVar(&f.Status, "status", 0, "`CODE` to answer with")
			flags.StringVar(&f.RetryAfter, "retry-after", "", "`SECONDS` or date of the header")
			flags.Int64Var(&f.Bytes, "bytes", 0, "`N` bytes, see the kinds")
			flags.DurationVar(&f.Wait, "wait", 0, "`TIME` to wait, such as 5s")
			flags.StringVar(&f.Value, "value", "", "`TEXT` of the title of a problem")
			flags.StringVar(&f.What, "what", "", "`TYPE` of a problem")
			flags.Bool("json", true, "print JSON, which is all there is")
			return func(ctx context.Context, args []string) error {
				if len(args) == 0 {
					active, err := admin.Ask[[]fault.Fault](ctx, *client, "faults", r)
					if err != nil {
						return err
					}
					return printJSON(out, active)
				}
				f.Kind, f.Client = fault.Kind(args[0]), client.For
				injected, err := admin.Ask[fault.Fault](ctx, *client, "fault", r)
				if err != nil {
					return err
				}
				return json.NewEncoder(out).Encode(injected)
			}
		},
	}
}
