package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/record"
)

// serverFlag chooses which of the two servers is meant.
func serverFlag(flags *flag.FlagSet) *string {
	return flags.String("server", "wfm", "`NAME` of the server: wfm or registry")
}

func faultCommand() command {
	return command{
		name: "fault", args: "[KIND]", summary: "let something go wrong; without KIND, show what will",
		help: `
Kinds:
  answer        another answer: --status, --retry-after
  cut           the connection ends after --bytes of the body
  truncate      a well-formed answer with only the first --bytes
  corrupt       one bit differs, in the byte at offset --bytes
  slow          --bytes per second
  delay         the answer comes after --wait
  header        the header --header has --value; no value leaves it out
  wrong-digest  the manifest names a document that does not exist (wfm)
  refuse        the TLS handshake fails (wfm, endpoint handshake)

Endpoints of the WFM: manifest, document, bundle, status, capabilities,
handshake. Endpoints of the registry: ping, manifest, blob, upload, token.
`,
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			server := serverFlag(flags)
			var f fault.Fault
			flags.StringVar(&f.Endpoint, "endpoint", "", "`NAME` of the endpoint (default: all)")
			flags.StringVar(&f.Match, "match", "", "`TEXT` that the path has to contain")
			flags.IntVar(&f.Skip, "skip", 0, "`N` requests that pass before it begins")
			flags.IntVar(&f.Times, "times", 0, "`N` requests it applies to (default: until cleared)")
			flags.IntVar(&f.Status, "status", 0, "`CODE` to answer with")
			flags.StringVar(&f.RetryAfter, "retry-after", "", "`SECONDS` or date of the header")
			flags.Int64Var(&f.Bytes, "bytes", 0, "`N` bytes, see the kinds")
			flags.DurationVar(&f.Wait, "wait", 0, "`TIME` to wait, as 5s")
			flags.StringVar(&f.Name, "header", "", "`NAME` of a header")
			flags.StringVar(&f.Value, "value", "", "`TEXT` of a header")
			return func(ctx context.Context, args []string, out io.Writer) error {
				switch len(args) {
				case 0:
					return showFaults(out, func() ([]fault.Fault, error) { return client.Faults(ctx, *server) })
				case 1:
					f.Kind = fault.Kind(args[0])
				default:
					return usageError{"one KIND at most, after the flags"}
				}
				injected, err := client.Inject(ctx, *server, f)
				if err != nil {
					return err
				}
				fmt.Fprintln(out, describe(injected))
				return nil
			}
		},
	}
}

func clearCommand() command {
	return command{
		name: "clear", summary: "end what was to go wrong",
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			server := serverFlag(flags)
			endpoint := flags.String("endpoint", "", "`NAME` of the endpoint (default: all)")
			return func(ctx context.Context, args []string, out io.Writer) error {
				if err := noArguments(args); err != nil {
					return err
				}
				return showFaults(out, func() ([]fault.Fault, error) { return client.Clear(ctx, *server, *endpoint) })
			}
		},
	}
}

func showFaults(out io.Writer, ask func() ([]fault.Fault, error)) error {
	faults, err := ask()
	if err != nil {
		return err
	}
	if len(faults) == 0 {
		fmt.Fprintln(out, "nothing is to go wrong")
	}
	for _, f := range faults {
		fmt.Fprintln(out, describe(f))
	}
	return nil
}

// describe is a fault in words.
func describe(f fault.Fault) string {
	words := []string{fmt.Sprintf("%d: %s", f.ID, f.Kind)}
	add := func(given bool, format string, args ...any) {
		if given {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	add(f.Endpoint != "", "at %s", f.Endpoint)
	add(f.Match != "", "where the path has %q", f.Match)
	add(f.Status != 0, "with %d", f.Status)
	add(f.RetryAfter != "", "retry after %s", f.RetryAfter)
	add(f.Bytes != 0, "%d bytes", f.Bytes)
	add(f.Wait != 0, "%s", f.Wait)
	add(f.Name != "", "%s: %s", f.Name, f.Value)
	add(f.Skip != 0, "after %d requests", f.Skip)
	add(f.Times != 0, "%d times", f.Times)
	return strings.Join(words, ", ")
}

func requestsCommand() command {
	return command{
		name: "requests", summary: "show what devices have asked for",
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

func retireCommand() command {
	return command{
		name: "retire", args: "CLIENT", summary: "end the relationship with a client: it is answered 403",
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			return func(ctx context.Context, args []string, _ io.Writer) error {
				if len(args) != 1 {
					return usageError{"one CLIENT is needed, by its id"}
				}
				return client.Retire(ctx, args[0])
			}
		},
	}
}

func acceptCommand() command {
	return command{
		name: "accept", args: "CLIENT", summary: "take a retired client back",
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			return func(ctx context.Context, args []string, _ io.Writer) error {
				if len(args) != 1 {
					return usageError{"one CLIENT is needed, by its id"}
				}
				return client.Accept(ctx, args[0])
			}
		},
	}
}
