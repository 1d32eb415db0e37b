package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/admin"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/record"
)

func askFlags(flags *command.Flags) *admin.Client {
	c := &admin.Client{}
	flags.StringVar(&c.URL, "admin", "http://127.0.0.1:8480", "`URL` of the running wfmsim")
	flags.StringVar(&c.For, "client", "", "`ID` of the client meant, where there are several")
	return c
}

func serverFlag(flags *command.Flags, r *admin.Request) {
	flags.StringVar(&r.Server, "server", "wfm", "`NAME` of the server: wfm, registry or mis")
}

// question is a command that shows the answer to a request, whose flags define adds: show prints it
// for people, and --json for programs. Without show there is only JSON.
func question[T any](out io.Writer, name, text string, define func(*command.Flags, *admin.Request), show func(io.Writer, T)) command.Command {
	return command.Command{
		Name: name, Text: text,
		Prepare: func(flags *command.Flags) command.Action {
			client, request := askFlags(flags), admin.Request{}
			define(flags, &request)
			asJSON := flags.Bool("json", false, "print JSON")
			return func(ctx context.Context, _ []string) error {
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

func noFlags(*command.Flags, *admin.Request) {}

func listCommand(out io.Writer) command.Command {
	return question(out, "list", "show the desired state of the client", noFlags, func(out io.Writer, list []wfmsim.Deployed) {
		fmt.Fprintln(out, "DEPLOYMENT\tNAME\tSINCE\tDIGEST")
		for _, d := range list {
			fmt.Fprintf(out, "%s\t%s\t%d\t%s\n", d.DeploymentID, d.Name, d.Since, d.Digest)
		}
	})
}

func capabilitiesCommand(out io.Writer) command.Command {
	return question[[]wfmsim.Device](out, "capabilities", "show the capabilities that devices have reported", noFlags, nil)
}

func requestsCommand(out io.Writer) command.Command {
	define := func(flags *command.Flags, r *admin.Request) {
		serverFlag(flags, r)
		flags.IntVar(&r.Last, "last", 20, "`N` newest requests; 0: all that are remembered")
	}
	return question(out, "requests", "show the requests of devices", define, func(out io.Writer, list []record.Request) {
		fmt.Fprintln(out, "TIME\tCLIENT\tREQUEST\tSTATUS\tBYTES")
		for _, r := range list {
			fmt.Fprintf(out, "%s\t%s\t%s %s\t%d\t%d\n", r.Time.Local().Format(time.TimeOnly), r.Client, r.Method, r.Path, r.Status, r.Sent)
		}
	})
}

func pendingCommand(out io.Writer) command.Command {
	return question(out, "pending", "show the clients that wait for approval", noFlags, func(out io.Writer, list []wfmsim.Pending) {
		fmt.Fprintln(out, "SINCE\tCLIENT\tSUBJECT\tFINGERPRINT")
		for _, p := range list {
			fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", p.Since.Local().Format(time.TimeOnly), p.Client, p.Subject, p.Fingerprint)
		}
	})
}

func clearCommand(out io.Writer) command.Command {
	return question[[]fault.Fault](out, "clear", "clear faults", func(flags *command.Flags, r *admin.Request) {
		serverFlag(flags, r)
		flags.StringVar(&r.Endpoint, "endpoint", "", "`NAME` of the endpoint (default: all)")
	}, nil)
}

// order is a command that changes something: fill completes the request, done prints the outcome.
func order[T any](out io.Writer, name, args, text string, fill func(*admin.Request, []string) error, done func(io.Writer, T)) command.Command {
	return command.Command{
		Name: name, Args: args, Text: text,
		Prepare: func(flags *command.Flags) command.Action {
			most := len(strings.Fields(args)) // those in brackets are optional
			flags.Takes(most-strings.Count(args, "["), most, args)
			client := askFlags(flags)
			return func(ctx context.Context, args []string) error {
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

// clientCommand changes the relationship with one client as its name says.
func clientCommand(out io.Writer, name, text string) command.Command {
	return order(out, name, "CLIENT", text, func(r *admin.Request, args []string) error {
		r.Client = args[0]
		return nil
	}, silent)
}

func versionCommand(out io.Writer) command.Command {
	return order(out, "version", "CLIENT VERSION", "set the version of the client's manifest", func(r *admin.Request, args []string) (err error) {
		r.Client = args[0]
		if r.Version, err = strconv.ParseUint(args[1], 10, 64); err != nil {
			err = command.Usagef("invalid version %q", args[1])
		}
		return err
	}, silent)
}

func approveCommand(out io.Writer) command.Command {
	return order(out, "approve", "[FINGERPRINT]", "approve a waiting client; without FINGERPRINT, all of them", func(r *admin.Request, args []string) error {
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

func removeCommand(out io.Writer) command.Command {
	return order(out, "remove", "DEPLOYMENT", "remove a deployment from the desired state", func(r *admin.Request, args []string) error {
		r.Deployment = args[0]
		return nil
	}, func(out io.Writer, removed admin.Removed) {
		fmt.Fprintf(out, "deployment %s is removed from manifest %d on\n", removed.DeploymentID, removed.Version)
	})
}

func publishCommand(out io.Writer) command.Command {
	c := order(out, "publish", "FILE", "add an ApplicationDeployment to the desired state", func(r *admin.Request, args []string) (err error) {
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
	prepare := c.Prepare
	c.Prepare = func(flags *command.Flags) command.Action {
		flags.More = `
FILE is an ApplicationDeployment in YAML, - for standard input. A deployment with
the same id is replaced. Deviations from 1.0.0-rc.3 that devices may tolerate are
listed and tolerated.
`
		return prepare(flags)
	}
	return c
}

func tellPublished(out io.Writer, published wfmsim.Published) {
	for _, warning := range published.Warnings {
		fmt.Fprintf(out, "note: %s\n", warning)
	}
	fmt.Fprintf(out, "deployment %s is part of manifest %d\n", published.DeploymentID, published.Version)
}
