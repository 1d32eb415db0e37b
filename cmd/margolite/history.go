package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
)

func (c *cli) history(f *command.Flags) command.Action {
	f.BoolVar(&c.json, "json", false, "print one JSON object per line")
	var r control.HistoryRequest
	var verify bool
	f.BoolVar(&verify, "verify", false, "verify that no entry was changed, removed or moved")
	f.StringVar(&r.Deployment, "deployment", "", "show the entries of `DEPLOYMENT` only")
	f.Func("last,n", "show the last `N` entries only", func(s string) error {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil || n < 1 {
			return fmt.Errorf("invalid number of entries %q", s)
		}
		r.Last = int(n)
		return nil
	})
	return c.asks(func(ctx context.Context, client *control.Client, _ []string) error {
		switch {
		case !verify:
			return c.showHistory(ctx, client, r)
		case r != control.HistoryRequest{}:
			return command.Usagef("--verify checks the whole journal: drop --deployment and --last")
		}
		return c.verifyHistory(ctx, client)
	})
}

func (c *cli) showHistory(ctx context.Context, client *control.Client, r control.HistoryRequest) error {
	if r.Deployment != "" {
		s, err := client.Status(ctx)
		if err != nil {
			return err
		}
		// A removed deployment is known only to the journal, by its id.
		if d, err := deploymentOf(s, r.Deployment); err == nil {
			r.Deployment = d.ID
		}
	}
	entries, err := client.History(ctx, r)
	if err != nil {
		return err
	}
	if c.json {
		enc := json.NewEncoder(c.out)
		for _, e := range entries {
			if err := enc.Encode(e); err != nil {
				return err
			}
		}
		return nil
	}
	w := table(plainWriter{c.out})
	for _, e := range entries {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", e.Time.Local().Format(time.DateTime), cell(e.Kind), cell(e.Deployment), cell(e.By), cell(textOf(e)))
	}
	return w.Flush()
}

func textOf(e control.Entry) string {
	parts := make([]string, 0, 3)
	if e.Version != 0 {
		parts = append(parts, fmt.Sprintf("version %d", e.Version))
	}
	if e.Revision != "" {
		parts = append(parts, shortDigest(e.Revision))
	}
	if e.Text != "" {
		parts = append(parts, e.Text)
	}
	return strings.Join(parts, ": ")
}

// cell returns a text for a table's cell; "-" if empty.
func cell(text string) string {
	if text = strings.Join(strings.Fields(text), " "); text == "" {
		return "-"
	}
	return text
}

func (c *cli) verifyHistory(ctx context.Context, client *control.Client) error {
	v, err := client.VerifyHistory(ctx)
	if err != nil {
		return err
	}
	if c.json {
		if err := c.printJSON(v); err != nil {
			return err
		}
	}
	if v.Problem != "" {
		return command.Hint(
			errors.New("the journal was altered: "+v.Problem),
			"copy state.dir/margolite.db for an investigation: a person or a failing disk has changed it",
		)
	}
	switch {
	case c.json:
	case v.Entries == 0:
		fmt.Fprintln(c.out, "The journal is empty.")
	default:
		fmt.Fprintf(c.out, "%s from number %d on, none changed, removed or moved\nhead %s\n", plural(int(v.Entries), "entry"), v.First, v.Head)
	}
	return nil
}
