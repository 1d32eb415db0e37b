// Package command is the command line of a program with verbs. Flags may appear anywhere among the
// arguments, and short ones may be combined (-it). Help goes to standard output; each error is
// followed by what to do about it.
package command

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Exit codes, part of the contract.
const (
	Done   = 0
	Failed = 1
	Usage  = 2
)

// Program is a program with its commands.
type Program struct {
	Name     string
	About    string // start of the overview
	Notes    string // end of the overview; may be empty
	Out, Err io.Writer
	Commands []Command
	Common   func(f *Flags) // defines flags of all commands; may be nil
	// Enter is called with all arguments before a command starts; may be nil.
	Enter    func(args []string) error
	Defaults bool // help shows the flags' defaults
	// Hint returns what to do about an error without a hint; "": unknown.
	Hint func(error) string
}

// Command is one verb.
type Command struct {
	Name    string // two words for a verb of another command, listed after it
	Args    string // for the usage line
	Text    string // one line for the overview; empty: no help mentions it
	Prepare func(f *Flags) Action
}

// Action is what a command does with its arguments.
type Action func(ctx context.Context, args []string) error

// Flags are the flags and the number of arguments of one command: none, unless set by Takes. A
// short name may follow the name, as in "quiet,q".
type Flags struct {
	*flag.FlagSet
	// Own is how many arguments precede another program's command line, in which nothing is a flag
	// of ours. Default: all arguments are ours.
	Own int
	// Rewrite changes the arguments before they are parsed; may be nil.
	Rewrite func(args []string) []string
	// More is the rest of the help text; may be empty.
	More string

	least, most int
	what        string
	letters     map[string]string // short names by the long ones
}

// Takes sets the allowed number of arguments; what describes them for people.
func (f *Flags) Takes(least, most int, what string) { f.least, f.most, f.what = least, most, what }

// Many is an unbounded number of arguments.
const Many = math.MaxInt

// Texts is a repeatable flag.
type Texts []string

func (t *Texts) String() string { return strings.Join(*t, ",") }

// Set implements flag.Value.
func (t *Texts) Set(s string) error {
	*t = append(*t, s)
	return nil
}

type usageError struct{ text, command string }

func (e *usageError) Error() string { return e.text }

// Usagef returns an error about the command line itself.
func Usagef(format string, args ...any) error { return &usageError{text: fmt.Sprintf(format, args...)} }

type hintError struct {
	error
	hint string
}

func (e *hintError) Unwrap() error { return e.error }

// Hint adds to err what to do about it.
func Hint(err error, hint string) error { return &hintError{err, hint} }

// HintOf returns what to do about an error; "": unknown.
func HintOf(err error) string {
	var hint *hintError
	if errors.As(err, &hint) {
		return hint.hint
	}
	return ""
}

// Exit is the exit code of a command that ran elsewhere and has already printed its error.
type Exit int

func (e Exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Main runs the command that args name, and returns the exit code.
func (p *Program) Main(ctx context.Context, args []string) int {
	err := p.dispatch(ctx, args)
	var usage *usageError
	var exit Exit
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return Done
	case errors.As(err, &exit):
		return int(exit)
	case errors.As(err, &usage):
		fmt.Fprintf(p.Err, "%s: %v\nfix: see `%s --help`\n", p.Name, err, strings.TrimSpace(p.Name+" "+usage.command))
		return Usage
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return Failed // interrupted; no message
	}
	fmt.Fprintf(p.Err, "%s: %v\n", p.Name, err)
	hint := HintOf(err)
	if hint == "" && p.Hint != nil {
		hint = p.Hint(err)
	}
	if hint != "" {
		fmt.Fprintf(p.Err, "fix: %s\n", hint)
	}
	return Failed
}

func (p *Program) dispatch(ctx context.Context, args []string) error {
	f := p.flags("")
	f.Usage = func() {}
	if err := f.Parse(args); err != nil {
		return p.flagError(err, "", p.overview)
	}
	switch {
	case f.NArg() == 0:
		p.overview(p.Err)
		return Usagef("no command given")
	case f.Arg(0) == "help" && f.NArg() > 1:
		return p.Run(ctx, strings.Join(f.Args()[1:], " "), []string{"--help"})
	case f.Arg(0) == "help":
		p.overview(p.Out)
		return nil
	case f.Arg(0) == describeVerb:
		return json.NewEncoder(p.Out).Encode(p.describe())
	case strings.Contains(f.Arg(0), " "):
		return Usagef("unknown command %q", f.Arg(0))
	}
	if p.Enter != nil {
		if err := p.Enter(args); err != nil {
			return err
		}
	}
	return p.Run(ctx, f.Arg(0), f.Args()[1:])
}

// Run runs one command.
func (p *Program) Run(ctx context.Context, name string, args []string) error {
	i := slices.IndexFunc(p.Commands, func(c Command) bool { return c.Name == name })
	if i < 0 {
		return Usagef("unknown command %q", name)
	}
	f, do := p.prepare(p.Commands[i])
	if f.Rewrite != nil {
		args = f.Rewrite(args)
	}
	args, err := f.parse(args)
	if err != nil {
		return p.flagError(err, name, func(w io.Writer) { p.usage(w, p.Commands[i], f) })
	}
	switch {
	case f.most == 0 && len(args) > 0:
		err = Usagef("%s does not take the argument %q", name, args[0])
	case len(args) < f.least || len(args) > f.most:
		err = Usagef("give %s %s", name, f.what)
	default:
		err = do(ctx, args)
	}
	var usage *usageError
	if errors.As(err, &usage) && usage.command == "" {
		usage.command = name
	}
	return err
}

func (p *Program) flags(name string) *Flags {
	f := &Flags{FlagSet: newFlagSet(name), Own: Many, letters: map[string]string{}}
	if p.Common != nil {
		p.Common(f)
	}
	return f
}

func newFlagSet(name string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	return f
}

func (p *Program) prepare(c Command) (*Flags, Action) {
	f := p.flags(c.Name)
	do := c.Prepare(f)
	defined := f.FlagSet
	f.FlagSet = newFlagSet(c.Name)
	defined.VisitAll(func(fl *flag.Flag) {
		name, letter, both := strings.Cut(fl.Name, ",")
		f.Var(fl.Value, name, fl.Usage)
		if both {
			f.Var(fl.Value, letter, "")
			f.letters[name] = letter
		}
	})
	return f, do
}

// flagError shows help on request, and turns other errors into usage errors.
func (p *Program) flagError(err error, name string, help func(io.Writer)) error {
	if errors.Is(err, flag.ErrHelp) {
		help(p.Out)
		return err
	}
	return &usageError{err.Error(), name}
}

// parse parses flags anywhere among args and returns the other arguments.
func (f *Flags) parse(args []string) (others []string, err error) {
	for {
		args = f.apart(args)
		if err := f.Parse(args); err != nil {
			return nil, err
		}
		rest := f.Args()
		begun := len(args) - len(rest)
		ended := begun > 0 && args[begun-1] == "--"
		if ended || len(rest) == 0 || len(others) >= f.Own {
			return append(others, rest...), nil
		}
		others, args = append(others, rest[0]), rest[1:]
	}
}

// apart splits combined short flags such as -it at the beginning of args.
func (f *Flags) apart(args []string) []string {
	args = slices.Clone(args)
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if len(arg) < 2 || arg[0] != '-' || arg == "--" {
			break
		}
		name, _, assigned := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		known := f.Lookup(name)
		switch {
		case known != nil && !assigned && !isSwitch(known):
			i++ // its value
		case known == nil && !assigned && arg[1] != '-' && !strings.ContainsFunc(name, f.isNoSwitch):
			letters := strings.Split(name, "")
			for n := range letters {
				letters[n] = "-" + letters[n]
			}
			args = slices.Replace(args, i, i+1, letters...)
		}
	}
	return args // f.Parse reports the error
}

func (f *Flags) isNoSwitch(letter rune) bool {
	known := f.Lookup(string(letter))
	return known == nil || !isSwitch(known)
}

func isSwitch(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

func (p *Program) overview(w io.Writer) {
	fmt.Fprintf(w, "%s\n\nCommands:\n", p.About)
	for _, c := range p.Commands {
		if c.Text != "" && !strings.Contains(c.Name, " ") {
			fmt.Fprintf(w, "  %-16s %s\n", c.Name, c.Text)
		}
	}
	fmt.Fprintf(w, "\n%s", p.Notes)
}

// Description is a command in help form.
type Description struct {
	Name, Args, Text string
	Flags            []Flag
}

// Flag is a flag of a command.
type Flag struct {
	Name   string
	Letter string // its short name; may be empty
	Value  string // placeholder of its value; empty: it takes none
	Text   string
}

// String returns the flag as it is typed: -n, --tail N.
func (f Flag) String() string {
	name := "--" + f.Name
	if f.Letter != "" {
		name = "-" + f.Letter + ", " + name
	}
	return strings.TrimSpace(name + " " + f.Value)
}

// describeVerb prints all commands as JSON, to generate manuals.
const describeVerb = "describe-commands"

func (p *Program) describe() (all []Description) {
	for _, c := range p.Commands {
		if c.Text != "" {
			f, _ := p.prepare(c)
			all = append(all, p.description(c, f))
		}
	}
	return all
}

func (p *Program) description(c Command, f *Flags) Description {
	d := Description{Name: c.Name, Args: c.Args, Text: c.Text}
	f.VisitAll(func(fl *flag.Flag) {
		if fl.Usage == "" { // a short name
			return
		}
		value, text := flag.UnquoteUsage(fl)
		if p.Defaults && !slices.Contains([]string{"", "0", "0s", "false"}, fl.DefValue) {
			text += " (default " + fl.DefValue + ")"
		}
		d.Flags = append(d.Flags, Flag{fl.Name, f.letters[fl.Name], value, text})
	})
	return d
}

func (p *Program) usage(w io.Writer, c Command, f *Flags) {
	fmt.Fprintf(w, "Usage: %s %s\n\n", p.Name, strings.TrimSpace(c.Name+" "+c.Args))
	if c.Text != "" {
		fmt.Fprintf(w, "%s.\n\n", strings.ToUpper(c.Text[:1])+c.Text[1:])
	}
	if f.More != "" {
		fmt.Fprintf(w, "%s\n\n", strings.TrimSpace(f.More))
	}
	title := "Verbs:\n"
	for _, verb := range p.Commands {
		if name, isVerb := strings.CutPrefix(verb.Name, c.Name+" "); isVerb {
			fmt.Fprintf(w, "%s  %-8s %s\n", title, name, verb.Text)
			title = ""
		}
	}
	if title == "" {
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w, "Flags:")
	for _, fl := range p.description(c, f).Flags {
		fmt.Fprintf(w, "  %-25s %s\n", fl, fl.Text)
	}
}
