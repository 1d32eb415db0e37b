package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/margolite/margolite/cmd/command"
)

// Completions are written out: to ask the program at each key would take a small
// device longer than to type the word.

// verbs are the second words of a command that has some.
func verbs(commands []command.Description, first string) []command.Description {
	var all []command.Description
	for _, c := range commands {
		if strings.HasPrefix(c.Name, first+" ") {
			all = append(all, c)
		}
	}
	return all
}

// top are the commands of one word.
func top(commands []command.Description) []command.Description {
	var all []command.Description
	for _, c := range commands {
		if !strings.Contains(c.Name, " ") {
			all = append(all, c)
		}
	}
	return all
}

func lastWords(commands []command.Description) string {
	var words []string
	for _, c := range commands {
		words = append(words, lastWord(c))
	}
	return strings.Join(words, " ")
}

func lastWord(c command.Description) string { return c.Name[strings.LastIndex(c.Name, " ")+1:] }

// valued are the flags that take the next word.
func valued(commands []command.Description) []string {
	takes := map[string]bool{}
	for _, c := range commands {
		for _, f := range c.Flags {
			if f.Value == "" {
				continue
			}
			takes["--"+f.Name] = true
			if f.Letter != "" {
				takes["-"+f.Letter] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(takes))
}

// bash completes words and flags, and files where it knows nothing else.
func bash(commands []command.Description) string {
	var b strings.Builder
	b.WriteString(`# bash completion of margolite
_margolite() {
	local cur=${COMP_WORDS[COMP_CWORD]} said="" word words="" i
	for ((i = 1; i < COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		case $word in
		` + strings.Join(valued(commands), " | ") + `) ((i++)) ;;
		-*) ;;
		*)
			if [[ -z $said ]]; then
				said=$word
			elif [[ $said == compose ]]; then
				said="compose $word"
			fi
			;;
		esac
	done
	case $said in
`)
	fmt.Fprintf(&b, "\t\"\") words=\"%s --config --help\" ;;\n", lastWords(top(commands)))
	for _, c := range commands {
		words := []string{}
		if own := lastWords(verbs(commands, c.Name)); own != "" {
			words = append(words, own)
		}
		for _, f := range c.Flags {
			words = append(words, "--"+f.Name)
		}
		fmt.Fprintf(&b, "\t%q) words=\"%s --help\" ;;\n", c.Name, strings.Join(words, " "))
	}
	b.WriteString(`	esac
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}
complete -o default -F _margolite margolite
`)
	return b.String()
}

// zsh has what flags mean beside them.
func zsh(commands []command.Description) string {
	var b strings.Builder
	b.WriteString("#compdef margolite\n# zsh completion of margolite\n\nlocal -a known\nlocal said=$words[2]\n[[ $said == compose ]] && (( CURRENT > 3 )) && said=\"compose $words[3]\"\n")
	b.WriteString("if (( CURRENT == 2 )); then\n\tknown=(\n")
	describe := func(indent string, list []command.Description) {
		for _, c := range list {
			fmt.Fprintf(&b, "%s%s\n", indent, apostrophes(lastWord(c)+":"+c.Text))
		}
	}
	describe("\t\t", top(commands))
	b.WriteString("\t)\n\t_describe command known\n\treturn\nfi\ncase $said in\n")
	for _, c := range commands {
		own := verbs(commands, c.Name)
		if own != nil {
			fmt.Fprintf(&b, "%q)\n\tknown=(\n", c.Name)
			describe("\t\t", own)
			b.WriteString("\t)\n\t_describe verb known\n\t;;\n")
			continue
		}
		fmt.Fprintf(&b, "%q)\n\t_arguments", c.Name)
		for _, f := range c.Flags {
			text := strings.NewReplacer("[", "(", "]", ")", ":", ",").Replace(f.Text)
			spec := "--" + f.Name + "[" + text + "]"
			if f.Value != "" {
				spec += ":" + f.Value + ":_files"
			}
			b.WriteString(" \\\n\t\t" + apostrophes(spec))
		}
		b.WriteString(" \\\n\t\t'*::argument:_files'\n\t;;\n")
	}
	b.WriteString("esac\n")
	return b.String()
}

// fish knows words, flags and what they mean.
func fish(commands []command.Description) string {
	var b strings.Builder
	b.WriteString("# fish completion of margolite\n")
	for _, c := range top(commands) {
		fmt.Fprintf(&b, "complete -c margolite -n __fish_use_subcommand -f -a %s -d %s\n", c.Name, apostrophes(c.Text))
	}
	for _, c := range commands {
		seen := "__fish_seen_subcommand_from " + strings.ReplaceAll(c.Name, " ", "; and __fish_seen_subcommand_from ")
		own := verbs(commands, c.Name)
		for _, verb := range own {
			fmt.Fprintf(&b, "complete -c margolite -n '%s; and not __fish_seen_subcommand_from %s' -f -a %s -d %s\n",
				seen, lastWords(own), lastWord(verb), apostrophes(verb.Text))
		}
		if !strings.Contains(c.Name, " ") && c.Name != "compose" { // logs and exec are verbs of it, too
			seen += "; and not __fish_seen_subcommand_from compose"
		}
		for _, f := range c.Flags {
			line := fmt.Sprintf("complete -c margolite -n '%s' -l %s", seen, f.Name)
			if f.Letter != "" {
				line += " -s " + f.Letter
			}
			if f.Value != "" {
				line += " -r"
			}
			fmt.Fprintf(&b, "%s -d %s\n", line, apostrophes(f.Text))
		}
	}
	return b.String()
}

// apostrophes quotes a text for any of the shells.
func apostrophes(text string) string { return "'" + strings.ReplaceAll(text, "'", "’") + "'" }
