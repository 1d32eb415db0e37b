package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Completions are written out: to ask the program at each key would take a small
// device longer than to type the word.

// verbs are the second words of a command that has some.
func verbs(commands []command, first string) []command {
	var all []command
	for _, c := range commands {
		if len(c.words) == 2 && c.words[0] == first {
			all = append(all, c)
		}
	}
	return all
}

// top are the commands of one word.
func top(commands []command) []command {
	var all []command
	for _, c := range commands {
		if len(c.words) == 1 {
			all = append(all, c)
		}
	}
	return all
}

func lastWords(commands []command) string {
	var words []string
	for _, c := range commands {
		words = append(words, c.words[len(c.words)-1])
	}
	return strings.Join(words, " ")
}

// valued are the flags that take the next word.
func valued(commands []command) []string {
	takes := map[string]bool{}
	for _, c := range commands {
		for _, f := range c.flags {
			if f.value == "" {
				continue
			}
			takes["--"+f.long] = true
			if f.letter != "" {
				takes["-"+f.letter] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(takes))
}

// bash completes words and flags, and files where it knows nothing else.
func bash(commands []command) string {
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
		if own := lastWords(verbs(commands, c.name())); own != "" {
			words = append(words, own)
		}
		for _, f := range c.flags {
			words = append(words, "--"+f.long)
		}
		fmt.Fprintf(&b, "\t%q) words=\"%s --help\" ;;\n", c.name(), strings.Join(words, " "))
	}
	b.WriteString(`	esac
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}
complete -o default -F _margolite margolite
`)
	return b.String()
}

// zsh has what flags mean beside them.
func zsh(commands []command) string {
	var b strings.Builder
	b.WriteString("#compdef margolite\n# zsh completion of margolite\n\nlocal -a known\nlocal said=$words[2]\n[[ $said == compose ]] && (( CURRENT > 3 )) && said=\"compose $words[3]\"\n")
	b.WriteString("if (( CURRENT == 2 )); then\n\tknown=(\n")
	describe := func(indent string, list []command) {
		for _, c := range list {
			fmt.Fprintf(&b, "%s%s\n", indent, apostrophes(c.words[len(c.words)-1]+":"+lower(c.text)))
		}
	}
	describe("\t\t", top(commands))
	b.WriteString("\t)\n\t_describe command known\n\treturn\nfi\ncase $said in\n")
	for _, c := range commands {
		own := verbs(commands, c.name())
		if own != nil {
			fmt.Fprintf(&b, "%q)\n\tknown=(\n", c.name())
			describe("\t\t", own)
			b.WriteString("\t)\n\t_describe verb known\n\t;;\n")
			continue
		}
		fmt.Fprintf(&b, "%q)\n\t_arguments", c.name())
		for _, f := range c.flags {
			text := strings.NewReplacer("[", "(", "]", ")", ":", ",").Replace(f.text)
			spec := "--" + f.long + "[" + text + "]"
			if f.value != "" {
				spec += ":" + f.value + ":_files"
			}
			b.WriteString(" \\\n\t\t" + apostrophes(spec))
		}
		b.WriteString(" \\\n\t\t'*::argument:_files'\n\t;;\n")
	}
	b.WriteString("esac\n")
	return b.String()
}

// fish knows words, flags and what they mean.
func fish(commands []command) string {
	var b strings.Builder
	b.WriteString("# fish completion of margolite\n")
	for _, c := range top(commands) {
		fmt.Fprintf(&b, "complete -c margolite -n __fish_use_subcommand -f -a %s -d %s\n", c.name(), apostrophes(lower(c.text)))
	}
	for _, c := range commands {
		seen := "__fish_seen_subcommand_from " + strings.Join(c.words, "; and __fish_seen_subcommand_from ")
		own := verbs(commands, c.name())
		for _, verb := range own {
			fmt.Fprintf(&b, "complete -c margolite -n '%s; and not __fish_seen_subcommand_from %s' -f -a %s -d %s\n",
				seen, lastWords(own), verb.words[1], apostrophes(lower(verb.text)))
		}
		if len(c.words) == 1 && c.name() != "compose" { // logs and exec are verbs of it, too
			seen += "; and not __fish_seen_subcommand_from compose"
		}
		for _, f := range c.flags {
			line := fmt.Sprintf("complete -c margolite -n '%s' -l %s", seen, f.long)
			if f.letter != "" {
				line += " -s " + f.letter
			}
			if f.value != "" {
				line += " -r"
			}
			fmt.Fprintf(&b, "%s -d %s\n", line, apostrophes(f.text))
		}
	}
	return b.String()
}

// apostrophes quotes a text for any of the shells.
func apostrophes(text string) string { return "'" + strings.ReplaceAll(text, "'", "’") + "'" }

func lower(text string) string { return strings.ToLower(text[:1]) + text[1:] }
