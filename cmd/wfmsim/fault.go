package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/record"
)

// serverFlag chooses which of the servers is meant.
func serverFlag(flags *flag.FlagSet) *string {
	return flags.String("server", "wfm", "`NAME` of the server: wfm, registry or mis")
}

func faultCommand() command {
	return command{
		name: "fault", args: "[KIND]", summary: "inject a fault; without KIND, list the faults",
		help: `
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
  header        the header --header has --value; no value leaves it out
  clock         the Date header is off by --wait, which may be negative
  twist         the content is wrong as --what says (wfm, endpoint manifest)
  certificate   the handshake shows a certificate with the flaw that --what names
                (endpoint handshake)

Endpoints of the WFM: manifest, document, bundle, status, capabilities,
handshake, before rc.3 also root and onboarding.
Endpoints of the registry: ping, manifest, blob, upload.
Endpoints of the MIS: discovery, bundle, handshake.

Twists of the manifest, and of the bundle that it names by the right digest
(--bytes: of the bomb, or how many entries):
  ` + strings.Join(wfmsim.Twists(), ", ") + `
Flaws of certificates that are SVIDs:
  ` + strings.Join((&pki.Authority{}).Flaws(), ", ") + `
and of ordinary ones:
  ` + strings.Join((&pki.ServerAuthority{}).Flaws(), ", ") + `
`,
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			server := serverFlag(flags)
			var f fault.Fault
			flags.StringVar(&f.Endpoint, "endpoint", "", "`NAME` of the endpoint (default: all)")
			flags.StringVar(&f.Match, "match", "", "affect requests whose path contains `TEXT`")
			flags.IntVar(&f.Skip, "skip", 0, "let `N` requests pass first")
			flags.IntVar(&f.Times, "times", 0, "affect `N` requests (default: until cleared)")
			flags.IntVar(&f.Status, "status", 0, "`CODE` to answer with")
			flags.StringVar(&f.RetryAfter, "retry-after", "", "`SECONDS` or date of the header")
			flags.Int64Var(&f.Bytes, "bytes", 0, "`N` bytes, see the kinds")
			flags.DurationVar(&f.Wait, "wait", 0, "`TIME` to wait, such as 5s")
			flags.StringVar(&f.Name, "header", "", "`NAME` of a header")
			flags.StringVar(&f.Value, "value", "", "`TEXT` of a header, of a title")
			flags.StringVar(&f.What, "what", "", "`NAME` of a twist, a flaw or a type of problem")
			list := asked(flags, func(ctx context.Context) ([]fault.Fault, error) { return client.Faults(ctx, *server) }, nil)
			return func(ctx context.Context, args []string, out io.Writer) error {
				if len(args) == 0 {
					return list(ctx, args, out)
				}
				f.Kind, f.Client = fault.Kind(args[0]), client.For
				injected, err := client.Inject(ctx, *server, f)
				if err != nil {
					return err
				}
				return json.NewEncoder(out).Encode(injected)
			}
		},
	}
}

func clearCommand() command {
	return command{
		name: "clear", summary: "clear faults",
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			server := serverFlag(flags)
			endpoint := flags.String("endpoint", "", "`NAME` of the endpoint (default: all)")
			return asked(flags, func(ctx context.Context) ([]fault.Fault, error) { return client.Clear(ctx, *server, *endpoint) }, nil)
		},
	}
}

func requestsCommand() command {
	return command{
		name: "requests", summary: "show the requests of devices",
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			server := serverFlag(flags)
			last := flags.Int("last", 20, "`N` newest requests; 0: all that are remembered")
			return asked(flags, func(ctx context.Context) ([]record.Request, error) { return client.Requests(ctx, *server, *last) },
				func(out io.Writer, list []record.Request) {
					fmt.Fprintln(out, "TIME\tCLIENT\tREQUEST\tSTATUS\tBYTES")
					for _, r := range list {
						fmt.Fprintf(out, "%s\t%s\t%s %s\t%d\t%d\n", r.Time.Local().Format(time.TimeOnly), r.Client, r.Method, r.Path, r.Status, r.Sent)
					}
				})
		},
	}
}

// clientCommand changes the relationship with one client, in the way of its name.
func clientCommand(name, summary string) command {
	return command{
		name: name, args: "CLIENT", summary: summary,
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			return func(ctx context.Context, args []string, _ io.Writer) error {
				return client.Change(ctx, args[0], name)
			}
		},
	}
}

func versionCommand() command {
	return command{
		name: "version", args: "CLIENT VERSION", summary: "set the version of the client's manifest",
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			return func(ctx context.Context, args []string, _ io.Writer) error {
				version, err := strconv.ParseUint(args[1], 10, 64)
				if err != nil {
					return usageError{fmt.Sprintf("invalid version %q", args[1])}
				}
				return client.SetVersion(ctx, args[0], version)
			}
		},
	}
}

func pendingCommand() command {
	return command{
		name: "pending", summary: "show the clients that wait for approval",
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			return asked(flags, func(ctx context.Context) ([]wfmsim.Pending, error) { return client.Pending(ctx) },
				func(out io.Writer, list []wfmsim.Pending) {
					fmt.Fprintln(out, "SINCE\tCLIENT\tSUBJECT\tFINGERPRINT")
					for _, p := range list {
						fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", p.Since.Local().Format(time.TimeOnly), p.Client, p.Subject, p.Fingerprint)
					}
				})
		},
	}
}

func approveCommand() command {
	return command{
		name: "approve", args: "[FINGERPRINT]", summary: "approve a waiting client; without FINGERPRINT, all of them",
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			return func(ctx context.Context, args []string, out io.Writer) error {
				if len(args) == 0 {
					waiting, err := client.Pending(ctx)
					if err != nil {
						return err
					}
					for _, p := range waiting {
						args = append(args, p.Fingerprint)
					}
				}
				for _, fingerprint := range args {
					approved, err := client.Approve(ctx, fingerprint)
					if err != nil {
						return err
					}
					fmt.Fprintf(out, "client %s is approved\n", approved.Client)
				}
				return nil
			}
		},
	}
}
