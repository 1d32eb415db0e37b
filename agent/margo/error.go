package margo

import (
	"fmt"
	"strings"
)

// Error is one violation of the specification in one document.
type Error struct {
	Requirement string // id in the requirement checklist or the ambiguity list, e.g. DS-23
	Path        string // where in the document, as a JSON Pointer; empty: the document as a whole
	Message     string // what is wrong there, without secrets
}

// Error says where, what, and which rule.
func (e *Error) Error() string {
	where := e.Path
	if where == "" {
		where = "document"
	}
	if e.Requirement == "" {
		return fmt.Sprintf("%s: %s", where, e.Message)
	}
	return fmt.Sprintf("%s: %s [%s]", where, e.Message, e.Requirement)
}

// Errors are the violations found in one document, in order. As an error it is never empty.
type Errors []*Error

const maxErrors = 16

// Error lists the violations on one line.
func (e Errors) Error() string {
	var b strings.Builder
	for i, err := range e {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(err.Error())
	}
	return b.String()
}

func (e *Errors) add(requirement, path, format string, args ...any) {
	if len(*e) < maxErrors {
		*e = append(*e, &Error{Requirement: requirement, Path: path, Message: fmt.Sprintf(format, args...)})
	}
}

// err returns nil if there is no violation.
func (e Errors) err() error {
	if len(e) == 0 {
		return nil
	}
	return e
}
