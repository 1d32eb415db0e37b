package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/wfmsim"
)

// followWait is how long one question for new reports stays open.
const followWait = 30 * time.Second

// asked is a command that only shows something: ask gets it, show prints it for
// people, and --json prints it for programs. Without show there is only JSON.
func asked[T any](flags *flag.FlagSet, ask func(context.Context) (T, error), show func(io.Writer, T)) action {
	asJSON := flags.Bool("json", false, "print JSON")
	return func(ctx context.Context, _ []string, out io.Writer) error {
		answer, err := ask(ctx)
		if err != nil {
			return err
		}
		if *asJSON || show == nil {
			encoder := json.NewEncoder(out)
			encoder.SetIndent("", "  ")
			return encoder.Encode(answer)
		}
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		show(table, answer)
		return table.Flush()
	}
}

func listCommand() command {
	return command{
		name: "list", summary: "show the desired state of the client",
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			return asked(flags, func(ctx context.Context) ([]wfmsim.Deployed, error) { return client.Deployments(ctx) },
				func(out io.Writer, list []wfmsim.Deployed) {
					fmt.Fprintln(out, "DEPLOYMENT\tNAME\tSINCE\tDIGEST")
					for _, d := range list {
						fmt.Fprintf(out, "%s\t%s\t%d\t%s\n", d.DeploymentID, d.Name, d.Since, d.Digest)
					}
				})
		},
	}
}

func capabilitiesCommand() command {
	return command{
		name: "capabilities", summary: "show the capabilities that devices have reported",
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			return asked(flags, func(ctx context.Context) ([]wfmsim.Device, error) { return client.Devices(ctx) }, nil)
		},
	}
}

func statusesCommand() command {
	return command{
		name: "statuses", summary: "show the statuses that devices have reported",
		prepare: func(flags *flag.FlagSet) action {
			client := askFlags(flags)
			deployment := flags.String("deployment", "", "`ID` of one deployment (default: all)")
			follow := flags.Bool("follow", false, "follow new reports")
			asJSON := flags.Bool("json", false, "print one JSON object per report")
			return func(ctx context.Context, _ []string, out io.Writer) error {
				last, wait := 0, time.Duration(0)
				for {
					reports, err := client.Statuses(ctx, *deployment, last, wait)
					if err != nil {
						if *follow && ctx.Err() != nil {
							return nil // ended by whoever was watching
						}
						return err
					}
					for _, report := range reports {
						last = report.Number
						if err := printReport(out, report, *asJSON); err != nil {
							return err
						}
					}
					if !*follow {
						return nil
					}
					wait = followWait
				}
			}
		},
	}
}

func outcome(c margo.ComponentStatus) string {
	text := string(c.State)
	if c.Name != "" {
		text = c.Name + " " + text
	}
	if c.Error != nil {
		text += " (" + c.Error.Code + ": " + c.Error.Message + ")"
	}
	return text
}

func printReport(out io.Writer, report wfmsim.Report, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(report)
	}
	var body struct {
		DeploymentID string                  `json:"deploymentId"`
		Version      uint64                  `json:"adoptedManifestVersion"`
		Status       margo.ComponentStatus   `json:"status"`
		Components   []margo.ComponentStatus `json:"components"`
	}
	if err := json.Unmarshal(report.Body, &body); err != nil {
		return fmt.Errorf("cannot read report %d: %w", report.Number, err)
	}
	fmt.Fprintf(out, "%s  %s  manifest %d  %s\n", report.Time.Local().Format(time.TimeOnly), body.DeploymentID, body.Version, outcome(body.Status))
	for _, component := range body.Components {
		fmt.Fprintf(out, "          %s\n", outcome(component))
	}
	return nil
}
