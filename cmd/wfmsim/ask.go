package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/admin"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/record"
)

// askFlags are those of every command that asks a running wfmsim.
func askFlags(flags *flag.FlagSet) *admin.Client {
	c := &admin.Client{}
	flags.StringVar(&c.URL, "admin", "http://127.0.0.1:8480", "`URL` of the running wfmsim")
	flags.StringVar(&c.For, "client", "", "`ID` of the client meant, where there are several")
	return c
}

// serverFlag chooses which of the servers is meant.
func serverFlag(flags *flag.FlagSet, r *admin.Request) {
	flags.StringVar(&r.Server, "server", "wfm", "`NAME` of the server: wfm, registry or mis")
}

// question is a command that shows the answer to a request, which define has flags
// for: show prints it for people, and --json for programs. Without show there is only
// JSON.
func question[T any](name, summary string, define func(*flag.FlagSet, *admin.Request), show func(io.Writer, T)) command {
	return command{
		name: name, summary: summary,
		prepare: func(flags *flag.FlagSet) action {
			client, request := askFlags(flags), admin.Request{}
			define(flags, &request)
			asJSON := flags.Bool("json", false, "print JSON")
			return func(ctx context.Context, _ []string, out io.Writer) error {
				answer, err := admin.Ask[T](ctx, *client, name, request)
				if err != nil {
					return err
				}
				if *asJSON || show == nil {
					return printJSON(out, answer)
				}
				table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
				show(table, answer)
				return table.Flush()
			}
		},
	}
}

func printJSON(out io.Writer, answer any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(answer)
}

func noFlags(*flag.FlagSet, *admin.Request) {}

func listCommand() command {
	return question("list", "show the desired state of the client", noFlags, func(out io.Writer, list []wfmsim.Deployed) {
		fmt.Fprintln(out, "DEPLOYMENT\tNAME\tSINCE\tDIGEST")
		for _, d := range list {
			fmt.Fprintf(out, "%s\t%s\t%d\t%s\n", d.DeploymentID, d.Name, d.Since, d.Digest)
		}
	})
}

func capabilitiesCommand() command {
	return question[[]wfmsim.Device]("capabilities", "show the capabilities that devices have reported", noFlags, nil)
}

func requestsCommand() command {
	define := func(flags *flag.FlagSet, r *admin.Request) {
		serverFlag(flags, r)
		flags.IntVar(&r.Last, "last", 20, "`N` newest requests; 0: all that are remembered")
	}
	return question("requests", "show the requests of devices", define, func(out io.Writer, list []record.Request) {
		fmt.Fprintln(out, "TIME\tCLIENT\tREQUEST\tSTATUS\tBYTES")
		for _, r := range list {
			fmt.Fprintf(out, "%s\t%s\t%s %s\t%d\t%d\n", r.Time.Local().Format(time.TimeOnly), r.Client, r.Method, r.Path, r.Status, r.Sent)
		}
	})
}

func pendingCommand() command {
	return question("pending", "show the clients that wait for approval", noFlags, func(out io.Writer, list []wfmsim.Pending) {
		fmt.Fprintln(out, "SINCE\tCLIENT\tSUBJECT\tFINGERPRINT")
		for _, p := range list {
			fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", p.Since.Local().Format(time.TimeOnly), p.Client, p.Subject, p.Fingerprint)
		}
	})
}

func clearCommand() command {
	return question[[]fault.Fault]("clear", "clear faults", func(flags *flag.FlagSet, r *admin.Request) {
		serverFlag(flags, r)
		flags.StringVar(&r.Endpoint, "endpoint", "", "`NAME` of the endpoint (default: all)")
	}, nil)
}

// order is a command that changes something: fill puts its arguments into the request,
// and done tells what came of it.
func order[T any](name, args, summary string, fill func(*admin.Request, []string) error, done func(io.Writer, T)) command {
	return command{
		name: name, args: args, summary: summary,
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			return func(ctx context.Context, args []string, out io.Writer) error {
				request := admin.Request{}
				if err := fill(&request, args); err != nil {
					return err
				}
				answer, err := admin.Ask[T](ctx, *client, name, request)
				if err == nil {
					done(out, answer)
				}
				return err
			}
		},
	}
}

func silent(io.Writer, any) {}

// clientCommand changes the relationship with one client, in the way of its name.
func clientCommand(name, summary string) command {
	return order(name, "CLIENT", summary, func(r *admin.Request, args []string) error {
		r.Client = args[0]
		return nil
	}, silent)
}

func versionCommand() command {
	return order("version", "CLIENT VERSION", "set the version of the client's manifest", func(r *admin.Request, args []string) (err error) {
		r.Client = args[0]
		if r.Version, err = strconv.ParseUint(args[1], 10, 64); err != nil {
			err = usageError{fmt.Sprintf("invalid version %q", args[1])}
		}
		return err
	}, silent)
}

func approveCommand() command {
	return order("approve", "[FINGERPRINT]", "approve a waiting client; without FINGERPRINT, all of them", func(r *admin.Request, args []string) error {
		if len(args) > 0 {
			r.Fingerprint = args[0]
		}
		return nil
	}, func(out io.Writer, clients []string) {
		for _, client := range clients {
			fmt.Fprintf(out, "client %s is approved\n", client)
		}
	})
}

func removeCommand() command {
	return order("remove", "DEPLOYMENT", "remove a deployment from the desired state", func(r *admin.Request, args []string) error {
		r.Deployment = args[0]
		return nil
	}, func(out io.Writer, removed admin.Removed) {
		fmt.Fprintf(out, "deployment %s is removed from manifest %d on\n", removed.DeploymentID, removed.Version)
	})
}

func publishCommand() command {
	c := order("publish", "FILE", "add an ApplicationDeployment to the desired state", func(r *admin.Request, args []string) (err error) {
		if args[0] == "-" {
			r.Document, err = io.ReadAll(os.Stdin)
		} else {
			r.Document, err = os.ReadFile(args[0])
		}
		if err != nil {
			err = fmt.Errorf("cannot read document: %w", err)
		}
		return err
	}, tellPublished)
	c.help = `
FILE is an ApplicationDeployment in YAML, - for standard input. A deployment with
the same id is replaced. Deviations from 1.0.0-rc.3 that devices may tolerate are
listed and tolerated.
`
	return c
}

func tellPublished(out io.Writer, published wfmsim.Published) {
	for _, warning := range published.Warnings {
		fmt.Fprintf(out, "note: %s\n", warning)
	}
	fmt.Fprintf(out, "deployment %s is part of manifest %d\n", published.DeploymentID, published.Version)
}
