module github.com/santhosh-tekuri/jsonschema/v6

go 1.25.0

require golang.org/x/text v0.42.0
