package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/admin"
)

// followWait is how long a request for new reports stays open.
const followWait = 30 * time.Second

func statusesCommand(out io.Writer) command.Command {
	return command.Command{
		Name: "statuses", Text: "show the statuses that devices have reported",
		Prepare: func(flags *command.Flags) command.Action {
			client, request := askFlags(flags), admin.Request{}
			flags.StringVar(&request.Deployment, "deployment", "", "`ID` of one deployment (default: all)")
			follow := flags.Bool("follow", false, "follow new reports")
			asJSON := flags.Bool("json", false, "print one JSON object per report")
			return func(ctx context.Context, _ []string) error {
				for {
					reports, err := admin.Ask[[]wfmsim.Report](ctx, *client, "statuses", request)
					if err != nil {
						if *follow && ctx.Err() != nil {
							return nil // interrupted by the user
						}
						return err
					}
					for _, report := range reports {
						request.After = report.Number
						if err := printReport(out, report, *asJSON); err != nil {
							return err
						}
					}
					if !*follow {
						return nil
					}
					request.Wait = followWait
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
