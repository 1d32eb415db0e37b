package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"strings"
)

// flags makes a flag set with what every command takes.
func (c *cli) flags(name string) *flag.FlagSet {
	c.command = name
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&c.configFile, "config", c.configFile, "read the configuration from `FILE`")
	return f
}

func (c *cli) jsonFlag(f *flag.FlagSet) { f.BoolVar(&c.json, "json", false, "print JSON for programs") }

// sameAs begins the usage of a short name for a flag.
const sameAs = "the same as --"

func short(f *flag.FlagSet, name, of string) {
	f.Var(f.Lookup(of).Value, name, sameAs+of)
}

type texts []string

func (t *texts) String() string { return strings.Join(*t, ",") }

// Set implements flag.Value.
func (t *texts) Set(s string) error {
	*t = append(*t, s)
	return nil
}

// parse parses flags in any place among args and returns the others.
func (c *cli) parse(f *flag.FlagSet, args []string) ([]string, error) {
	positional, _, err := c.parseCommand(f, args, math.MaxInt)
	return positional, err
}

// parseNone is parse for commands without arguments.
func (c *cli) parseNone(f *flag.FlagSet, args []string) error {
	rest, err := c.parse(f, args)
	if err == nil && len(rest) > 0 {
		err = usagef("%s does not take the argument %q", f.Name(), rest[0])
	}
	return err
}

// parseCommand is parse for what runs a command: behind n arguments and the
// flags around them everything belongs to the command.
func (c *cli) parseCommand(f *flag.FlagSet, args []string, n int) (positional, command []string, err error) {
	for {
		rest, ended, err := c.parseSome(f, args)
		if err != nil {
			return nil, nil, err
		}
		if missing := min(n-len(positional), len(rest)); missing == 0 || ended {
			return append(positional, rest[:missing]...), rest[missing:], nil
		}
		positional, args = append(positional, rest[0]), rest[1:]
	}
}

// parseSome parses the flags that args begin with. ended says that -- was
// behind them.
func (c *cli) parseSome(f *flag.FlagSet, args []string) (rest []string, ended bool, err error) {
	args = apart(f, args)
	if err := f.Parse(args); err != nil {
		return nil, false, c.flagError(err, func(w io.Writer) { c.usage(w, f) })
	}
	rest = f.Args()
	i := len(args) - len(rest)
	return rest, i > 0 && args[i-1] == "--", nil
}

// apart takes short flags that were given together, such as -it, apart, as far
// as args begin with flags.
func apart(f *flag.FlagSet, args []string) []string {
	var result []string
	for len(args) > 0 {
		arg := args[0]
		if len(arg) < 2 || arg[0] != '-' || arg == "--" {
			break
		}
		name, _, assigned := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		known := f.Lookup(name)
		switch {
		case known != nil:
			result, args = append(result, arg), args[1:]
			if !assigned && !isSwitch(known) && len(args) > 0 {
				result, args = append(result, args[0]), args[1:]
			}
		case arg[1] != '-' && !assigned && areSwitches(f, name):
			for _, letter := range name {
				result = append(result, "-"+string(letter))
			}
			args = args[1:]
		default:
			return append(result, args...) // f.Parse says what is wrong with it
		}
	}
	return append(result, args...)
}

func areSwitches(f *flag.FlagSet, letters string) bool {
	for _, letter := range letters {
		if known := f.Lookup(string(letter)); known == nil || !isSwitch(known) {
			return false
		}
	}
	return true
}

// isSwitch says whether a flag stands for itself, without a value.
func isSwitch(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// flagError shows help when it was asked for, and makes a usage error of the rest.
func (c *cli) flagError(err error, help func(io.Writer)) error {
	if err == flag.ErrHelp {
		help(c.out)
		return err
	}
	return &usageError{err.Error()}
}

func (c *cli) usage(w io.Writer, f *flag.FlagSet) {
	for _, cmd := range append(commands(), composeVerbs()...) {
		if cmd.name == f.Name() {
			fmt.Fprintf(w, "Usage: margolite %s\n\n%s.\n\n", strings.TrimSpace(cmd.name+" "+cmd.args), strings.ToUpper(cmd.short[:1])+cmd.short[1:])
		}
	}
	if f.Name() == "compose" {
		fmt.Fprintln(w, "Verbs:")
		for _, v := range composeVerbs() {
			fmt.Fprintf(w, "  %-8s %s\n", strings.TrimPrefix(v.name, "compose "), v.short)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w, "Flags:")
	letters := map[string]string{} // by the long name that means the same
	f.VisitAll(func(fl *flag.Flag) {
		if of, alias := strings.CutPrefix(fl.Usage, sameAs); alias {
			letters[of] = "-" + fl.Name + ", "
		}
	})
	f.VisitAll(func(fl *flag.Flag) {
		if strings.HasPrefix(fl.Usage, sameAs) {
			return
		}
		kind, text := flag.UnquoteUsage(fl)
		fmt.Fprintf(w, "  %-25s %s\n", strings.TrimSpace(letters[fl.Name]+"--"+fl.Name+" "+kind), text)
	})
}
